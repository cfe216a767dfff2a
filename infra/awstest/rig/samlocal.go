package rig

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
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
		cloud.EnvPublicURL: "http://localhost", // links that nobody follows
	}})
	if err != nil {
		return "", fmt.Errorf("encode environment: %w", err)
	}
	file := filepath.Join(r.state, "env.json")
	if err := os.WriteFile(file, vars, 0o600); err != nil {
		return "", fmt.Errorf("write environment: %w", err)
	}
	template, err := r.localTemplate()
	if err != nil {
		return "", err
	}
	port, err := FreePort()
	if err != nil {
		return "", err
	}
	arch, _ := architecture()
	c, err := r.start("sam-local", r.root, append(Environment(s.Endpoint), "TMPDIR="+r.state), r.bin(sam, "sam"), "local", "start-api",
		"--template", template, "--parameter-overrides", "Architecture="+arch,
		"--skip-pull-image", "--invoke-image", image, "--warm-containers", "LAZY",
		"--env-vars", file, "--host", "127.0.0.1", "--port", strconv.Itoa(port))
	if err != nil {
		return "", err
	}
	return loopback(port), waitHTTP(ctx, loopback(port)+"/healthz", 90*time.Second, c)
}

// functionARN is how SAM writes !GetAtt FUNCTION.Arn into what it has built.
var functionARN = regexp.MustCompile(`IntegrationUri:\s+Fn::GetAtt:\s+- (\w+)\s+- Arn`)

// localTemplate is the built template with the functions of integrations named:
// `sam local` does not resolve the ARN of a function of its own template there.
func (r *Rig) localTemplate() (string, error) {
	b, err := os.ReadFile(filepath.Join(r.BuildDir(), "template.yaml"))
	if err != nil {
		return "", fmt.Errorf("read built template: %w", err)
	}
	if !functionARN.Match(b) {
		return "", errors.New("the built template has no integration with a function")
	}
	file := filepath.Join(r.BuildDir(), "local.yaml")
	b = functionARN.ReplaceAll(b, []byte("IntegrationUri: arn:aws:lambda:"+Region+":000000000000:function:$1"))
	if err := os.WriteFile(file, b, 0o600); err != nil {
		return "", fmt.Errorf("write template for sam local: %w", err)
	}
	return file, nil
}
