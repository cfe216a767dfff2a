package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/opsplane/opsplane/infra/kubetest/plane"
)

// tag marks the tests that need a control plane.
const tag = "kubetest"

// Bounds of one package's tests. The whole run is meant to take less than 12
// minutes on two cores.
const (
	testTimeout  = "10m"
	benchTimeout = "30m"
)

// test runs the tests with the tag, or those of the module that args tell go test
// of.
func (r *runner) test(ctx context.Context, module string, args []string) error {
	// Two packages at a time: most of a test's time is waiting, and each private
	// control plane of a test wants a core while it starts.
	err := r.run(ctx, module, args, true, "-p", "2", "-parallel", "8", "-timeout", testTimeout)
	if err != nil && ctx.Err() == nil {
		return errors.Join(err, r.keepLogs())
	}
	return err
}

// bench measures, one package after the other.
func (r *runner) bench(ctx context.Context, module string, args []string) error {
	return r.run(ctx, module, args, false, "-run", "^$", "-bench", ".", "-benchtime", "1x", "-p", "1", "-timeout", benchTimeout)
}

// run starts the shared control plane and runs go test with the flags: of every
// module on all packages that have tests with the tag, or, if there are args, of
// the one module on those. The race detector is for the root module: the others'
// libraries take longer to build with it than all tests take.
func (r *runner) run(ctx context.Context, module string, args []string, race bool, flags ...string) error {
	flagsOf := func(dir string) []string {
		if race && dir == r.root {
			return append([]string{"-race"}, flags...)
		}
		return slices.Clone(flags)
	}
	if _, err := r.shared(ctx); err != nil {
		return err
	}
	if len(args) > 0 {
		dir := filepath.Clean(r.path(module))
		return r.goTest(ctx, dir, append(flagsOf(dir), args...))
	}
	modules, err := r.modules()
	if err != nil {
		return err
	}
	found := false
	var errs []error
	for _, dir := range modules {
		packages, err := r.tagged(ctx, dir)
		if err != nil {
			return err
		}
		if len(packages) == 0 {
			continue
		}
		found = true
		errs = append(errs, r.goTestAll(ctx, dir, flagsOf(dir), packages))
		if ctx.Err() != nil {
			break
		}
	}
	if !found {
		errs = append(errs, errors.New("no test has the tag "+tag))
	}
	return errors.Join(errs...)
}

// modules are the folders of the repository's modules but for this one, the root
// first.
func (r *runner) modules() (dirs []string, err error) {
	err = filepath.WalkDir(r.root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != r.root && (strings.HasPrefix(d.Name(), ".") || slices.Contains([]string{"testdata", "bin", "data"}, d.Name())):
			return filepath.SkipDir
		case d.IsDir() && path == r.path("infra", "kubetest"):
			return filepath.SkipDir
		case d.Name() == "go.mod":
			dirs = append(dirs, filepath.Dir(path))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("find the repository's modules: %w", err)
	}
	slices.Sort(dirs)
	return dirs, nil
}

// keepLogs puts what the shared control plane wrote where the next failure's goes
// too.
func (r *runner) keepLogs() error {
	to := filepath.Join(r.cache, "failed")
	if err := os.RemoveAll(to); err != nil {
		return fmt.Errorf("keep logs: %w", err)
	}
	if err := os.CopyFS(to, os.DirFS(filepath.Join(r.state, "shared", "log"))); err != nil {
		return fmt.Errorf("keep logs: %w", err)
	}
	r.say("the shared control plane's logs are kept in %s", to)
	return nil
}

// goTestAll runs the packages' tests by the test runner that was given, go test if
// there is none.
func (r *runner) goTestAll(ctx context.Context, dir string, flags, packages []string) error {
	with := strings.Fields(r.runWith)
	if len(with) == 0 {
		return r.goTest(ctx, dir, slices.Concat(flags, packages))
	}
	report := filepath.Join(r.state, "flaky")
	with = append(with, "--rerun-fails-report", report, "--packages", strings.Join(packages, " "), "--")
	if err := os.Remove(report); err != nil && !errors.Is(err, fs.ErrNotExist) { // of another module
		return fmt.Errorf("remove the report of flaky tests: %w", err)
	}
	err := r.runTests(ctx, dir, slices.Concat(with, always, flags)...)
	b, readErr := os.ReadFile(report)
	if errors.Is(readErr, fs.ErrNotExist) { // none failed, or too many
		return err
	}
	for l := range strings.Lines(string(b)) {
		if l = strings.TrimSpace(l); l != "" {
			fmt.Fprintln(r.out, "kubetest:          FLAKY", l)
		}
	}
	return errors.Join(err, readErr)
}

// always is how go test is run: never from the cache.
var always = []string{"-count=1", "-tags", tag}

func (r *runner) goTest(ctx context.Context, dir string, args []string) error {
	return r.runTests(ctx, dir, slices.Concat([]string{"go", "test"}, always, args)...)
}

// runTests runs tests behind a keeper: whatever they started ends with this process.
func (r *runner) runTests(ctx context.Context, dir string, argv ...string) error {
	env, err := r.environment()
	if err != nil {
		return err
	}
	var last lastLines
	began := time.Now()
	err = r.kept(ctx, dir, append(os.Environ(), env...), io.MultiWriter(os.Stdout, &last), argv...)
	name, relErr := filepath.Rel(r.root, dir)
	if relErr != nil {
		name = dir
	}
	r.say("the tests in %s ended after %s: %s", name, time.Since(began).Round(time.Second), verdict(err))
	for _, l := range last.lines {
		fmt.Fprintln(r.out, "kubetest:         ", l)
	}
	return err
}

func verdict(err error) string {
	if err != nil {
		return "FAILED (" + err.Error() + ")"
	}
	return "every package passed"
}

// lastLines keeps go test's line for each package: what a run says at its end.
type lastLines struct {
	part  []byte
	lines []string
}

func (l *lastLines) Write(b []byte) (int, error) {
	l.part = append(l.part, b...)
	for {
		line, rest, ok := bytes.Cut(l.part, []byte("\n"))
		if !ok {
			return len(b), nil
		}
		for _, mark := range []string{"ok  \t", "FAIL\t", "--- FAIL", "=== FAIL", "DONE ", "panic: "} {
			if bytes.HasPrefix(line, []byte(mark)) {
				l.lines = append(l.lines, string(line))
			}
		}
		l.part = bytes.Clone(rest)
	}
}

// kept runs a program of the repository in a process group of its own until it
// ends, or ctx does, or this process is gone.
func (r *runner) kept(ctx context.Context, dir string, env []string, stdout io.Writer, argv ...string) error {
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find own program: %w", err)
	}
	cmd := exec.Command(exe, append([]string{"keep"}, argv...)...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, env, stdout, r.out
	stdin, err := cmd.StdinPipe() // its end ends the keeper
	if err != nil {
		return fmt.Errorf("start %s: %w", argv[0], err)
	}
	// Not by plane.Fork: the keeper outlives this process, to end the group.
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", argv[0], err)
	}
	stop := context.AfterFunc(ctx, func() { _ = stdin.Close() })
	defer stop()
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%s: %w", strings.Join(argv[:min(2, len(argv))], " "), err)
	}
	return nil
}

// keep is the keeper: it runs a program for as long as stdin is open.
func keep(argv []string, stdin io.Reader, stdout, stderr io.Writer) error {
	return plane.Keep(argv, stdin, stdout, stderr)
}

// tagged lists a module's packages that have tests with the tag: the others are
// run by `make test`.
func (r *runner) tagged(ctx context.Context, dir string) ([]string, error) {
	plain, err := r.testFiles(ctx, dir)
	if err != nil {
		return nil, err
	}
	with, err := r.testFiles(ctx, dir, "-tags", tag)
	if err != nil {
		return nil, err
	}
	var out []string
	for pkg, files := range with {
		if !slices.Equal(files, plain[pkg]) {
			out = append(out, pkg)
		}
	}
	slices.Sort(out)
	return out, nil
}

// testFiles lists the test files of each package.
func (r *runner) testFiles(ctx context.Context, dir string, args ...string) (map[string][]string, error) {
	cmd := exec.CommandContext(ctx, "go", append(append([]string{"list", "-json=ImportPath,TestGoFiles,XTestGoFiles"}, args...), "./...")...)
	cmd.Dir, cmd.Stderr = dir, r.out
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	files := map[string][]string{}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct {
			ImportPath                string
			TestGoFiles, XTestGoFiles []string
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return files, nil
		} else if err != nil {
			return nil, fmt.Errorf("read go list: %w", err)
		}
		files[p.ImportPath] = append(p.TestGoFiles, p.XTestGoFiles...)
	}
}
