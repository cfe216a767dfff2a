// Package rig installs and starts a local AWS: MiniStack for the whole stack,
// LocalStack for SQS and EventBridge a second time, SAM to build, check and
// deploy the template, and Docker where functions run in containers.
//
// It stands below package up, which tests and people call. Every version is
// pinned, everything listens on loopback, and everything that it starts ends with
// the program that started it, also when that is killed.
package rig

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// CacheEnv names the folder that keeps installed tools between runs; the default
// is opsplane/awstest in the user's cache folder.
const CacheEnv = "OPSPLANE_AWS_CACHE"

// Region is where the local AWS pretends to be.
const Region = "us-east-1"

// Rig is a local AWS and what it takes to work on it.
type Rig struct {
	cache string    // tools, kept
	state string    // logs and data of this run, removed by Close
	root  string    // the repository
	out   io.Writer // progress

	mu       sync.Mutex // of what follows
	children []*child
	closing  []func()   // what Close does, the last first
	installs sync.Mutex // one tool is installed at a time
}

// New makes the folders of a rig for the repository at root.
func New(root string, out io.Writer) (*Rig, error) {
	cache := os.Getenv(CacheEnv)
	if cache == "" {
		dir, err := os.UserCacheDir()
		if err != nil {
			return nil, fmt.Errorf("find cache folder (or set %s): %w", CacheEnv, err)
		}
		cache = filepath.Join(dir, "opsplane", "awstest")
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return nil, fmt.Errorf("make cache folder: %w", err)
	}
	state, err := os.MkdirTemp("", "opsplane-awstest-")
	if err != nil {
		return nil, fmt.Errorf("make state folder: %w", err)
	}
	return &Rig{cache: cache, state: state, root: root, out: out}, nil
}

// State is a folder of this run alone.
func (r *Rig) State() string { return r.state }

// Close ends what was started, the last first, and removes the state folder.
func (r *Rig) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, stop := range slices.Backward(r.closing) {
		stop()
	}
	return os.RemoveAll(r.state)
}

func (r *Rig) atClose(do func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closing = append(r.closing, do)
}

// Say prints a line of progress.
func (r *Rig) Say(format string, args ...any) { fmt.Fprintf(r.out, "awstest: "+format+"\n", args...) }

// Environment is this process's, but that the SDK and SAM in it talk to a local
// AWS at the endpoint and to no other, whatever the user is logged in to.
func Environment(endpoint string) []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "AWS_") })
	return append(env,
		"AWS_ENDPOINT_URL="+endpoint, "AWS_REGION="+Region, "AWS_DEFAULT_REGION="+Region,
		"AWS_ACCESS_KEY_ID=test", "AWS_SECRET_ACCESS_KEY=test",
		"AWS_CONFIG_FILE="+os.DevNull, "AWS_SHARED_CREDENTIALS_FILE="+os.DevNull,
		"AWS_EC2_METADATA_DISABLED=true", "SAM_CLI_TELEMETRY=0")
}

// FreePort is a loopback port that nobody listens on.
func FreePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	return port, l.Close()
}

func loopback(port int) string { return "http://127.0.0.1:" + strconv.Itoa(port) }

// waitHTTP waits until the URL answers 200, the child ends, or the time is up.
func waitHTTP(ctx context.Context, url string, within time.Duration, c *child) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		if answers(ctx, url) {
			return nil
		}
		select {
		case <-c.done:
			return fmt.Errorf("start %s: it ended: %w\n%s", c.name, c.err, c.tail())
		case <-ctx.Done():
			return fmt.Errorf("start %s: no answer at %s within %s\n%s", c.name, url, within, c.tail())
		case <-tick.C:
		}
	}
}

func answers(ctx context.Context, url string) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	err = errors.Join(drain(resp.Body), resp.Body.Close())
	return err == nil && resp.StatusCode == http.StatusOK
}

func drain(r io.Reader) error {
	_, err := io.Copy(io.Discard, r)
	return err
}
