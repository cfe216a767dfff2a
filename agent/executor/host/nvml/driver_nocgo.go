//go:build !cgo || !linux

package nvml

import (
	"fmt"

	"github.com/opsplane/opsplane/agent/executor/host/gpu"
)

// Options say where the driver's parts are.
type Options struct {
	Library string
	Root    string
}

// Open says that this build cannot ask a driver: NVML is a C library.
func Open(Options) (gpu.Driver, error) {
	return nil, fmt.Errorf("%w: this program was built without NVML (cgo is needed)", gpu.ErrNoDriver)
}
