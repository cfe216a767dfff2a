package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opsplane/opsplane/infra/awstest/rig"
)

// tag marks the tests that need a local AWS.
const tag = "awstest"

// What the tests are told, beside the SDK's own variables. Package awstest reads
// them.
const (
	envURL        = "OPSPLANE_URL"            // the deployed API
	envToken      = "OPSPLANE_TOKEN"          // an administrator's
	envStage      = "OPSPLANE_STAGE"          // of the deployment
	envSAMLocal   = "OPSPLANE_SAM_LOCAL_URL"  // the API with its functions in containers
	envBuild      = "OPSPLANE_AWS_BUILD"      // what sam build left
	envLocalStack = "OPSPLANE_LOCALSTACK_URL" // SQS and EventBridge a second time
)

// runTests proves the AWS engine: the template by its tools, then every test with
// the tag (or those that args tell go test of), on a local AWS with the template
// deployed. runner is the command that runs every test, with flags as gotestsum has
// them; "" is go test.
func runTests(ctx context.Context, r *rig.Rig, root, runner string, args []string) error {
	var localStack, samLocal string
	var docker *rig.Docker
	d, err := deploy(ctx, r, "test", "127.0.0.1:0",
		timed(r, "LocalStack", func(ctx context.Context) (err error) { localStack, err = r.LocalStack(ctx); return err }),
		timed(r, "Docker", func(ctx context.Context) (err error) { docker, err = r.Docker(ctx); return err }),
		timed(r, "the template's checks", r.Lint))
	if err != nil {
		return err
	}
	if err := timed(r, "sam local", func(ctx context.Context) (err error) {
		samLocal, err = r.SAMLocal(ctx, docker, d.stack)
		return err
	})(ctx); err != nil {
		return err
	}
	// One package after the other: some of them measure.
	argv := slices.Concat([]string{"go", "test"}, always, []string{"-p", "1", "-timeout", "25m"}, args)
	if len(args) == 0 {
		packages, err := tagged(ctx, root)
		if err != nil {
			return err
		}
		if with := strings.Fields(runner); len(with) > 0 {
			report, err := os.CreateTemp("", "opsplane-flaky-")
			if err != nil {
				return fmt.Errorf("make the report of flaky tests: %w", err)
			}
			defer func() { tellFlaky(r, report) }()
			with = append(with, "--rerun-fails-report", report.Name(), "--packages", strings.Join(packages, " "), "--")
			argv = slices.Concat(with, argv[2:])
		} else {
			argv = append(argv, packages...)
		}
	}
	env := append(rig.Environment(d.stack.Endpoint), envURL+"="+d.url, envToken+"="+d.admin, envStage+"="+d.stack.Stage,
		envSAMLocal+"="+samLocal, envBuild+"="+r.BuildDir(), envLocalStack+"="+localStack)
	return timed(r, "the tests", func(ctx context.Context) error {
		err := goTest(ctx, root, env, argv...)
		if err != nil && ctx.Err() == nil {
			r.Logs(os.Stderr)
		}
		return err
	})(ctx)
}

// runBench measures through a local AWS with the template deployed.
func runBench(ctx context.Context, r *rig.Rig, root string) error {
	d, err := deploy(ctx, r, "bench", "127.0.0.1:0")
	if err != nil {
		return err
	}
	env := append(rig.Environment(d.stack.Endpoint), envURL+"="+d.url, envToken+"="+d.admin, envStage+"="+d.stack.Stage)
	return goTest(ctx, root, env, slices.Concat([]string{"go", "test"}, always,
		[]string{"-run", "^$", "-bench", ".", "-benchtime", "1x", "-timeout", "10m", "./infra/awstest", "./infra/awstest/inproc"})...)
}

// always is how go test is run: never from the cache.
var always = []string{"-count=1", "-tags", tag}

// tellFlaky names the tests that passed, or failed, only when they ran again, and
// removes the report of them.
func tellFlaky(r *rig.Rig, report *os.File) {
	b, err := io.ReadAll(report)
	if err := errors.Join(err, report.Close(), os.Remove(report.Name())); err != nil {
		r.Say("read the report of flaky tests: %v", err)
	}
	for l := range strings.Lines(string(b)) {
		if l = strings.TrimSpace(l); l != "" {
			r.Say("FLAKY %s", l)
		}
	}
}

func goTest(ctx context.Context, root string, env []string, argv ...string) error {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = root, env, os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go test: %w", err)
	}
	return nil
}

// tagged lists the packages that have tests with the tag: the others are run by
// `make test`.
func tagged(ctx context.Context, root string) ([]string, error) {
	plain, err := testFiles(ctx, root)
	if err != nil {
		return nil, err
	}
	with, err := testFiles(ctx, root, "-tags", tag)
	if err != nil {
		return nil, err
	}
	var out []string
	for pkg, files := range with {
		if !slices.Equal(files, plain[pkg]) {
			out = append(out, pkg)
		}
	}
	if len(out) == 0 {
		return nil, errors.New("no test has the tag " + tag)
	}
	slices.Sort(out)
	return out, nil
}

// testFiles lists the test files of each package.
func testFiles(ctx context.Context, root string, args ...string) (map[string][]string, error) {
	cmd := exec.CommandContext(ctx, "go", append(append([]string{"list", "-json=ImportPath,TestGoFiles,XTestGoFiles"}, args...), "./...")...)
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return nil, fmt.Errorf("go list: %w\n%s", err, exit.Stderr)
		}
		return nil, fmt.Errorf("go list: %w", err)
	}
	files := map[string][]string{}
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct {
			ImportPath                string
			TestGoFiles, XTestGoFiles []string
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return files, nil
		} else if err != nil {
			return nil, fmt.Errorf("read go list: %w", err)
		}
		files[filepath.ToSlash(p.ImportPath)] = append(p.TestGoFiles, p.XTestGoFiles...)
	}
}
