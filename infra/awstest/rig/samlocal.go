package rig

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/opsplane/opsplane/shared/cloud"
)

// SAMLocal serves the API with its functions in containers, over the table, the
// queues and the bus of a stack, and returns its URL.
func (r *Rig) SAMLocal(ctx context.Context, d *Docker, s Stack) (string, error) {
	inside, err := d.Forward(ctx, s.Endpoint)
	if err != nil {
		return "", err
	}
	image, err := r.BaseImage(ctx, inside)
	if err != nil {
		return "", err
	}
	// SAM resolves a reference to a resource as the resource's name in the
	// template: what the functions are told is named here.
	vars, err := json.Marshal(map[string]map[string]string{"Parameters": {
		cloud.EnvStage: s.Stage, cloud.EnvTable: s.Table, cloud.EnvQueuePrefix: s.Prefix, cloud.EnvBus: s.Bus,
	}})
	if err != nil {
		return "", fmt.Errorf("encode environment: %w", err)
	}
	file := filepath.Join(r.state, "env.json")
	if err := os.WriteFile(file, vars, 0o600); err != nil {
		return "", fmt.Errorf("write environment: %w", err)
	}
	port, err := FreePort()
	if err != nil {
		return "", err
	}
	arch, _ := architecture()
	c, err := r.start("sam-local", r.root, Environment(s.Endpoint), r.bin(sam, "sam"), "local", "start-api",
		"--template", filepath.Join(r.BuildDir(), "template.yaml"), "--parameter-overrides", "Architecture="+arch,
		"--skip-pull-image", "--invoke-image", image, "--add-host", HostName+":"+d.Gateway, "--warm-containers", "LAZY",
		"--env-vars", file, "--host", "127.0.0.1", "--port", strconv.Itoa(port))
	if err != nil {
		return "", err
	}
	return loopback(port), waitHTTP(ctx, loopback(port)+"/healthz", 3*time.Minute, c)
}
