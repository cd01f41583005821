//go:build tools

// Package programs names the commands that the lab builds from this module.
package programs

import (
	_ "github.com/kubernetes-csi/external-resizer/cmd/csi-resizer"
)
