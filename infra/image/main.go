// Command image builds the container images of the agent, of the GPU host's side
// and of what upgrades charts: first the programs, on this machine, then an image
// of each, which needs a Docker daemon and nothing of a build within it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// product is one image.
type product struct {
	name    string // of the image: <registry>/opsplane-<name>
	program string
	module  string // folder of its module, from the repository
	pkg     string // from there
	cgo     bool   // linked with the C library: it loads others at run time
	version string // the variable that holds its version
}

var products = []product{
	{name: "agent", program: "opsplane-agent", module: ".", pkg: "./agent", version: "github.com/opsplane/opsplane/agent/agentcmd.linked"},
	{name: "host", program: "opsplane-host", module: ".", pkg: "./agent/executor/host/opsplane-host", cgo: true, version: "main.linked"},
	{name: "upgrade", program: "opsplane-upgrade", module: "agent/executor/helm", pkg: "./opsplane-upgrade"},
}

// caBundles are where distributions keep the CAs that the system trusts.
var caBundles = []string{"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"}

type options struct {
	root, out, registry, tag, arch, hostBase, docker, goTool string
	only                                                     []string
	programsOnly                                             bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	o, err := parse(os.Args[1:], os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err == nil {
		err = o.build(ctx, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// tagShape is how a tag may look (OCI distribution specification, "Pulling
// manifests").
var tagShape = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$`)

func parse(args []string, stderr io.Writer) (options, error) {
	o := options{root: ".", goTool: "go"}
	fs := flag.NewFlagSet("image", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.StringVar(&o.out, "out", "bin/image", "`folder` for programs and contexts")
	fs.StringVar(&o.registry, "registry", "ghcr.io/opsplane", "`prefix` of the images' names")
	fs.StringVar(&o.tag, "tag", "dev", "tag of the images, and the programs' version")
	fs.StringVar(&o.arch, "arch", "amd64", "amd64 or arm64")
	fs.StringVar(&o.hostBase, "host-base", "", "`image` with glibc for opsplane-host (default: as its Dockerfile says)")
	fs.StringVar(&o.docker, "docker", "docker", "`program` to build with")
	fs.BoolVar(&o.programsOnly, "programs-only", false, "build no images")
	only := fs.String("only", "", "comma-separated `names` out of agent, host, upgrade")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	switch {
	case fs.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	case !tagShape.MatchString(o.tag):
		return o, fmt.Errorf("--tag %q: it must be 1 to 128 letters, digits, dots, dashes and underscores", o.tag)
	case o.arch != "amd64" && o.arch != "arm64":
		return o, fmt.Errorf("--arch %q: it must be amd64 or arm64", o.arch)
	}
	if *only != "" {
		for name := range strings.SplitSeq(*only, ",") {
			if !slices.ContainsFunc(products, func(p product) bool { return p.name == name }) {
				return o, fmt.Errorf("--only %q: there are agent, host and upgrade", name)
			}
			o.only = append(o.only, name)
		}
	}
	return o, nil
}

// build builds what was asked for. An image that could not be built is an error,
// said after all programs are there.
func (o options) build(ctx context.Context, stdout io.Writer) error {
	dir := filepath.Join(o.out, o.arch)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	var wanted []product
	for _, p := range products {
		if len(o.only) == 0 || slices.Contains(o.only, p.name) {
			wanted = append(wanted, p)
		}
	}
	for _, p := range wanted {
		context, err := o.program(ctx, dir, p)
		if err != nil {
			return err
		}
		fmt.Fprintf(stdout, "built %s\n", filepath.Join(context, p.program))
	}
	if o.programsOnly {
		return nil
	}
	if err := o.answers(ctx); err != nil {
		return fmt.Errorf("no image is built, only the programs in %s: %w", dir, err)
	}
	for _, p := range wanted {
		image, err := o.image(ctx, dir, p)
		if err != nil {
			return err
		}
		fmt.Fprintf(stdout, "built image %s\n", image)
	}
	return nil
}

// program builds one program into the folder that its image is built from.
func (o options) program(ctx context.Context, dir string, p product) (string, error) {
	into, err := filepath.Abs(filepath.Join(dir, p.name))
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(into, 0o755); err != nil {
		return "", fmt.Errorf("make folder: %w", err)
	}
	flags := "-s -w"
	if p.version != "" {
		flags += " -X " + p.version + "=" + o.tag
	}
	cgo := "0"
	if p.cgo {
		cgo = "1"
	}
	cmd := exec.CommandContext(ctx, o.goTool, "build", "-trimpath", "-ldflags", flags, "-o", filepath.Join(into, p.program), p.pkg)
	cmd.Dir = filepath.Join(o.root, p.module)
	cmd.Env = append(os.Environ(), "CGO_ENABLED="+cgo, "GOOS=linux", "GOARCH="+o.arch)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", p.program, err, out)
	}
	if p.cgo {
		return into, nil // its base has CAs, and it calls nobody
	}
	for _, bundle := range caBundles {
		pem, err := os.ReadFile(bundle)
		if err != nil {
			continue
		}
		if err := os.WriteFile(filepath.Join(into, "ca-certificates.crt"), pem, 0o644); err != nil {
			return "", fmt.Errorf("copy CAs: %w", err)
		}
		return into, nil
	}
	return "", fmt.Errorf("no CA bundle on this machine (%s): install ca-certificates", strings.Join(caBundles, ", "))
}

// answers tells why there is nothing to build images with.
func (o options) answers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if _, err := exec.LookPath(o.docker); err != nil {
		return fmt.Errorf("there is no %s here", o.docker)
	}
	if exec.CommandContext(ctx, o.docker, "version").Run() != nil {
		return fmt.Errorf("no daemon answers %s version", o.docker)
	}
	return nil
}

func (o options) image(ctx context.Context, dir string, p product) (string, error) {
	name := fmt.Sprintf("%s/opsplane-%s:%s", strings.TrimSuffix(o.registry, "/"), p.name, o.tag)
	args := []string{"build", "--platform", "linux/" + o.arch, "--file", filepath.Join(o.root, "infra", "image", p.name+".Dockerfile"), "--tag", name}
	if p.name == "host" && o.hostBase != "" {
		args = append(args, "--build-arg", "BASE="+o.hostBase)
	}
	out, err := exec.CommandContext(ctx, o.docker, append(args, filepath.Join(dir, p.name))...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build image %s: %w\n%s", name, err, out)
	}
	return name, nil
}
