//go:build tools

// Package programs names the commands that the lab builds from this module.
package programs

import (
	_ "github.com/kubernetes-csi/external-provisioner/v5/cmd/csi-provisioner"
)
