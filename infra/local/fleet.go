package local

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
)

// DemoClusters are the simulated fleet's clusters; each has a scenario of its
// name and an agent in a process of its own.
var DemoClusters = []string{"alpha", "beta", "gamma"}

// Bounds of how fast an agent that ended is started again.
const (
	restartFirst = 300 * time.Millisecond
	restartMax   = 10 * time.Second
)

// demoToken returns the token of a demo cluster's agents, registering the
// cluster on first use.
func (e *Engine) demoToken(ctx context.Context, name string) (path string, err error) {
	dir := filepath.Join(e.opts.Data, "agents")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("make agents' folder: %w", err)
	}
	path = filepath.Join(dir, name+".token")
	_, err = e.Store.ClusterByName(ctx, name)
	switch {
	case errors.Is(err, ledger.ErrNotFound):
		c, err := e.Registry.Create(ctx, PlaneCall(), name)
		if err != nil {
			return "", fmt.Errorf("register cluster %s: %w", name, err)
		}
		return path, writeSecret(path, c.Secret)
	case err != nil:
		return "", err
	}
	if b, err := os.ReadFile(path); err == nil {
		if _, err := e.Tokens.Authenticate(ctx, string(trim(b))); err == nil {
			return path, nil
		}
	}
	c, err := e.Registry.RotateToken(ctx, PlaneCall(), name)
	if err != nil {
		return "", fmt.Errorf("rotate token of cluster %s: %w", name, err)
	}
	return path, writeSecret(path, c.Secret)
}

// Fleet runs the simulated fleet's agents until ctx ends: each in a process of
// its own, in this process's group, started again when it ends, and ending by
// itself when this process does (its standard input closes).
func (e *Engine) Fleet(ctx context.Context, planeURL, caFile string) error {
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find own program: %w", err)
	}
	var wg sync.WaitGroup
	for _, name := range DemoClusters {
		token, err := e.demoToken(ctx, name)
		if err != nil {
			return err
		}
		args := []string{"agent", "--plane", planeURL, "--token-file", token, "--name", name + "-sim-0", "--executor", "sim",
			"--sim-scenario", "demo/" + name, "--sim-state", filepath.Join(e.opts.Data, "sim", name),
			"--state-dir", filepath.Join(e.opts.Data, "agents", name), "--parent-pipe"}
		if e.opts.Insecure && e.opts.TLSCert == "" {
			args = append(args, "--insecure")
		}
		if caFile != "" {
			args = append(args, "--ca-file", caFile)
		}
		wg.Go(func() { e.keepRunning(ctx, name, exe, args) })
	}
	wg.Wait()
	return nil
}

// keepRunning starts one agent again whenever it ends.
func (e *Engine) keepRunning(ctx context.Context, name, exe string, args []string) {
	log := e.opts.Logger.With("agent", name)
	wait := restartFirst
	for ctx.Err() == nil {
		began := time.Now()
		err := e.runAgent(ctx, name, exe, args, log)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > time.Minute {
			wait = restartFirst
		}
		log.Warn("a simulated agent ended and is started again", "err", err, "after", wait)
		if !sleep(ctx, wait) {
			return
		}
		wait = min(2*wait, restartMax)
	}
}

func (e *Engine) runAgent(ctx context.Context, name, exe string, args []string, log *slog.Logger) error {
	cmd := exec.Command(exe, args...)
	stdin, err := cmd.StdinPipe() // its end tells the agent that this process is gone
	if err != nil {
		return err
	}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	pid := filepath.Join(e.opts.Data, "agents", name+".pid")
	if err := os.WriteFile(pid, []byte(strconv.Itoa(cmd.Process.Pid)+"\n"), 0o600); err != nil {
		log.Warn("cannot write the agent's pid", "err", err)
	}
	ended := make(chan error, 1)
	go func() {
		sc := bufio.NewScanner(stderr)
		for sc.Scan() {
			fmt.Fprintf(os.Stderr, "[%s] %s\n", name, sc.Text())
		}
		ended <- cmd.Wait()
	}()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		_ = stdin.Close() // asks it to stop
		select {
		case <-ended:
		case <-time.After(5 * time.Second):
			_ = cmd.Process.Kill()
			<-ended
		}
		return nil
	}
}
