//go:build tools

// Package programs names the commands that the lab builds from this module.
package programs

import (
	_ "go.etcd.io/etcd/server/v3"
)
