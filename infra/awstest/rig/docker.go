package rig

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Docker is a Docker daemon that containers of functions can run on.
type Docker struct {
	// Gateway is this machine's address on the containers' network.
	Gateway string
}

// Docker finds a daemon that answers, or installs and starts one of its own.
func (r *Rig) Docker(ctx context.Context) (*Docker, error) {
	if !r.dockerAnswers(ctx) {
		if err := r.dockerd(ctx); err != nil {
			return nil, err
		}
	}
	// Some daemons leave the gateway out of what they tell of their network.
	bridge, err := net.InterfaceByName("docker0")
	if err != nil {
		return nil, fmt.Errorf("find docker's bridge: %w", err)
	}
	addrs, err := bridge.Addrs()
	if err != nil {
		return nil, fmt.Errorf("find docker's bridge: %w", err)
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() && p.Addr().IsPrivate() {
			return &Docker{Gateway: p.Addr().String()}, nil
		}
	}
	return nil, fmt.Errorf("docker's bridge has no private IPv4 address, it has %v", addrs)
}

func (r *Rig) dockerAnswers(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return exec.CommandContext(ctx, "docker", "info").Run() == nil
}

// dockerd starts a daemon by hand: where services are not started by the system.
func (r *Rig) dockerd(ctx context.Context) error {
	if _, err := exec.LookPath("dockerd"); err != nil {
		r.Say("installing docker.io")
		if err := apt(ctx, "docker.io"); err != nil {
			return err
		}
	}
	data := filepath.Join(r.cache, "docker")
	c, err := r.start("dockerd", r.state, os.Environ(), "dockerd", "--data-root", data, "--exec-root", filepath.Join(r.state, "docker-exec"),
		"--pidfile", filepath.Join(r.state, "dockerd.pid"))
	if err != nil {
		return err
	}
	for end := time.Now().Add(45 * time.Second); time.Now().Before(end); {
		if r.dockerAnswers(ctx) {
			return nil
		}
		select {
		case <-c.done:
			return fmt.Errorf("start dockerd (it takes root): %w\n%s", c.err, c.tail())
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(300 * time.Millisecond):
		}
	}
	return fmt.Errorf("start dockerd: no answer\n%s", c.tail())
}

// BaseImage makes the image that functions run in under `sam local`, and returns
// its name: a shell and little else, enough for a static binary beside SAM's own
// runtime emulator, so that nothing need be pulled. What the functions' SDK is to
// talk to is part of the image, since SAM passes on only variables that the
// template names.
func (r *Rig) BaseImage(ctx context.Context, endpoint string) (string, error) {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		if err := apt(ctx, "busybox-static"); err != nil {
			return "", err
		}
		if busybox, err = exec.LookPath("busybox"); err != nil {
			return "", fmt.Errorf("find busybox: %w", err)
		}
	}
	root := filepath.Join(r.state, "image")
	for _, dir := range []string{"bin", "etc", "tmp", "opt", "root", "var/task", "var/runtime"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return "", fmt.Errorf("make base image: %w", err)
		}
	}
	program, err := os.ReadFile(busybox)
	if err != nil {
		return "", fmt.Errorf("make base image: %w", err)
	}
	errs := []error{
		os.WriteFile(filepath.Join(root, "bin", "busybox"), program, 0o755),
		os.WriteFile(filepath.Join(root, "etc", "passwd"), []byte("root:x:0:0:root:/root:/bin/sh\n"), 0o644),
	}
	for _, name := range []string{"sh", "chmod", "ls", "cat", "mkdir"} {
		errs = append(errs, os.Symlink("busybox", filepath.Join(root, "bin", name)))
	}
	if err := errors.Join(errs...); err != nil {
		return "", fmt.Errorf("make base image: %w", err)
	}
	tar := filepath.Join(r.state, "image.tar")
	if err := r.run(ctx, nil, "tar", "-C", root, "-c", "-f", tar, "."); err != nil {
		return "", fmt.Errorf("make base image: %w", err)
	}
	// SAM names the image that it makes of this one by the repository alone, and
	// takes one that is there: so the repository is of this run.
	image := filepath.Base(r.state) + ":base"
	r.atClose(func() { r.removeImages(filepath.Base(r.state)) })
	if err := r.run(ctx, nil, "docker", "import", "--change", "ENV AWS_ENDPOINT_URL="+endpoint, tar, image); err != nil {
		return "", fmt.Errorf("make base image: %w", err)
	}
	return image, nil
}

// Forward lets containers reach an endpoint on loopback: it listens on the
// gateway's address, at the same port, until ctx ends. It returns the endpoint as
// containers and this machine alike can call it: addresses of queues that one of
// them is told are of use to the other.
func (d *Docker) Forward(ctx context.Context, endpoint string) (string, error) {
	u, err := url.Parse(endpoint)
	if err != nil {
		return "", fmt.Errorf("forward to %s: %w", endpoint, err)
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", net.JoinHostPort(d.Gateway, u.Port()))
	if err != nil {
		return "", fmt.Errorf("forward to %s: %w", endpoint, err)
	}
	context.AfterFunc(ctx, func() { _ = l.Close() }) // ends Accept
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return // closed
			}
			go pipe(ctx, in, u.Host)
		}
	}()
	return "http://" + l.Addr().String(), nil
}

// pipe copies between a connection and an address until either side ends.
func pipe(ctx context.Context, in net.Conn, addr string) {
	defer func() { _ = in.Close() }()
	var d net.Dialer
	out, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return
	}
	stop := context.AfterFunc(ctx, func() { _, _ = in.Close(), out.Close() })
	defer stop()
	go func() {
		_, _ = io.Copy(out, in)
		_ = out.Close()
	}()
	_, _ = io.Copy(in, out)
}

// removeImages removes the images of a repository, with the containers that still
// run on them. What cannot be removed is left: nothing finds it by name again.
func (r *Rig) removeImages(repository string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	list := func(args ...string) []string {
		out, err := exec.CommandContext(ctx, "docker", args...).Output()
		if err != nil {
			return nil
		}
		return strings.Fields(string(out))
	}
	images := list("images", "--quiet", "--filter", "reference="+repository)
	for _, image := range images {
		if left := list("ps", "--all", "--quiet", "--filter", "ancestor="+image); len(left) > 0 {
			list(append([]string{"rm", "--force"}, left...)...)
		}
	}
	if len(images) > 0 {
		list(append([]string{"rmi", "--force"}, images...)...)
	}
}
