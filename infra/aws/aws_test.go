package aws

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opsplane/opsplane/shared/ledger"
)

// bare takes away what the machine may know of AWS.
func bare(t *testing.T) {
	for _, name := range []string{"AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_PROFILE", "AWS_SESSION_TOKEN"} {
		t.Setenv(name, "")
	}
	none := filepath.Join(t.TempDir(), "none")
	t.Setenv("AWS_CONFIG_FILE", none)
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", none)
	t.Setenv("AWS_ACCESS_KEY_ID", "test")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "test")
}

func TestOpen(t *testing.T) {
	bare(t)
	for _, c := range []struct {
		o    Options
		says string
	}{
		{Options{Region: "us-east-1"}, "--stack or by --table"},
		{Options{Region: "us-east-1", Stack: "s", Table: "t"}, "--stack or by --table"},
		{Options{Table: "t"}, "--region"},
		{Options{Region: "us-east-1", Table: strings.Repeat("t", 42)}, "--queue-prefix"},
		{Options{Region: "us-east-1", Table: "t", QueuePrefix: "a.b"}, "--queue-prefix"},
	} {
		if _, err := Open(t.Context(), c.o); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v, want %q", c.o, err, c.says)
		}
	}
	d, err := Open(t.Context(), Options{Region: "us-east-1", Table: "opsplane-prod"})
	if err != nil {
		t.Fatal(err)
	}
	if d.QueuePrefix != "opsplane-prod-" || d.Region != "us-east-1" {
		t.Errorf("queues %s, region %s", d.QueuePrefix, d.Region)
	}
}

// stack answers DescribeStacks (CloudFormation API Reference) with the outputs,
// or with an error when there are none.
func stack(t *testing.T, outputs map[string]string) string {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm()
		if r.Form.Get("Action") != "DescribeStacks" || r.Form.Get("StackName") != "mine" {
			t.Errorf("called with %v", r.Form)
		}
		if outputs == nil {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, `<ErrorResponse><Error><Type>Sender</Type><Code>ValidationError</Code><Message>Stack with id mine does not exist</Message></Error></ErrorResponse>`)
			return
		}
		fmt.Fprint(w, `<DescribeStacksResponse><DescribeStacksResult><Stacks><member><StackName>mine</StackName><Outputs>`)
		for k, v := range outputs {
			fmt.Fprintf(w, `<member><OutputKey>%s</OutputKey><OutputValue>%s</OutputValue></member>`, k, v)
		}
		fmt.Fprint(w, `</Outputs></member></Stacks></DescribeStacksResult></DescribeStacksResponse>`)
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

func TestOpenStack(t *testing.T) {
	bare(t)
	open := func(outputs map[string]string, prefix string) (*Deployment, error) {
		return Open(t.Context(), Options{Stack: "mine", QueuePrefix: prefix, Region: "us-east-1", Endpoint: stack(t, outputs)})
	}
	d, err := open(map[string]string{outputTable: "opsplane-x", outputPrefix: "other-", outputURL: "https://api.example"}, "")
	if err != nil || d.Table != "opsplane-x" || d.QueuePrefix != "other-" || d.URL != "https://api.example" {
		t.Errorf("%+v, %v", d, err)
	}
	if d, err = open(map[string]string{outputTable: "opsplane-x", outputPrefix: "other-"}, "mine-"); err != nil || d.QueuePrefix != "mine-" {
		t.Errorf("%+v, %v", d, err)
	}
	if _, err := open(nil, ""); err == nil || err.Error() != "read stack mine: ValidationError: Stack with id mine does not exist" {
		t.Errorf("no stack: %v", err)
	}
	if _, err := open(map[string]string{"Other": "x"}, ""); err == nil || !strings.Contains(err.Error(), outputTable) {
		t.Errorf("somebody else's stack: %v", err)
	}
}

// The template has the outputs that are read here.
func TestOutputsOfTheTemplate(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile(filepath.Join("..", "..", "template.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	_, outputs, found := strings.Cut(string(b), "\nOutputs:\n")
	for _, name := range []string{outputTable, outputPrefix, outputURL} {
		if !found || !strings.Contains(outputs, "\n  "+name+":\n") && !strings.HasPrefix(outputs, "  "+name+":\n") {
			t.Errorf("template.yaml has no output %s", name)
		}
	}
}

// A stream that cannot be read twice is kept where its user alone can read it,
// and not for longer than it is read.
func TestSeekable(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	src, drop, err := seekable(bytes.NewBufferString("an export"))
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(os.TempDir())
	if err != nil || len(entries) != 1 {
		t.Fatalf("%d files kept, %v", len(entries), err)
	}
	if info, err := entries[0].Info(); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("kept as %v, %v", info.Mode(), err)
	}
	for range 2 {
		if _, err := src.Seek(0, io.SeekStart); err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(src); err != nil || string(b) != "an export" {
			t.Errorf("read %q, %v", b, err)
		}
	}
	drop()
	if entries, err = os.ReadDir(os.TempDir()); err != nil || len(entries) != 0 {
		t.Errorf("%d files left, %v", len(entries), err)
	}
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if src, _, err := seekable(file); err != nil || src != io.ReadSeeker(file) {
		t.Errorf("a file is read as %v, %v", src, err)
	}
}

func TestPlainIn(t *testing.T) {
	t.Parallel()
	err := fmt.Errorf("write: %w: timeout", ledger.ErrUnavailable)
	if got := plainIn(err); got != err || !errors.Is(got, ledger.ErrUnavailable) {
		t.Errorf("%v", got)
	}
}
