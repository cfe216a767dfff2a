package recorded

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opsplane/opsplane/agent/executor/host/gpu"
)

const uuid = "GPU-8f3c0a6e-1111-2222-3333-444455556666"

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "n.json")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestBadRecordings: what is wrong with one is said, with the field.
func TestBadRecordings(t *testing.T) {
	t.Parallel()
	for text, says := range map[string]string{
		`{`:                          "unexpected EOF",
		`{"devices":[{"uuid":"x"}]}`: "devices[0].uuid",
		`{"devices":[{"uuid":"` + uuid + `","pci":"y"}]}`:                                    "devices[0].pci",
		`{"devices":[{"uuid":"` + uuid + `","pci":"0000:3b:00.0","reset":{"refuses":"x"}}]}`: "refuses",
	} {
		if _, err := Open(write(t, text), ""); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", text, err)
		}
	}
	dir := t.TempDir()
	for _, node := range []string{"", "../x", "none"} {
		if _, err := Open(dir, node); err == nil {
			t.Errorf("a recording for node %q", node)
		}
	}
}

// TestState: what a reset changes lasts past the process.
func TestState(t *testing.T) {
	t.Parallel()
	path := write(t, `{"devices":[{"uuid":"`+strings.ToUpper(uuid[4:])+`","pci":"3B:00.0","recovery":"gpu_reset","mig":{"current":"disabled","pending":"enabled"},"reset":{"takes_ms":50}}]}`)
	d, err := Open(path, "")
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := d.Reset(short, uuid, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("past its time: %v", err)
	}
	if n, err := Resets(path, uuid); n != 0 || err != nil {
		t.Errorf("%d resets: %v", n, err)
	}
	if err := d.Reset(t.Context(), uuid, nil); err != nil {
		t.Fatal(err)
	}
	if d, err = Open(path, ""); err != nil {
		t.Fatal(err)
	}
	s, err := d.Read(t.Context())
	if err != nil || s.Devices[0].Recovery != "none" || s.Devices[0].MIG.Current != "enabled" || s.Devices[0].PCI != "0000:3b:00.0" {
		t.Errorf("%+v: %v", s.Devices, err)
	}
	if err := d.Use(t.Context(), "GPU-00000000-1111-2222-3333-444455556666"); !errors.Is(err, gpu.ErrGone) {
		t.Errorf("another device: %v", err)
	}
}
