package kmsg

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/agent/executor/host/report"
)

var boot = time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC)

func TestParse(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]Event{
		"3,1287,5000000,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python3, GPU has fallen off the bus.": {
			PCI: "0000:3b:00.0", Code: 79, At: boot.Add(5 * time.Second), Text: "pid=1234, name=python3, GPU has fallen off the bus."},
		"4,9,1,c;NVRM: Xid (0000:01:00): 31, Ch 0000000b, engmask 00000120\n SUBSYSTEM=pci\n DEVICE=+pci:0000:01:00.0": {
			PCI: "0000:01:00.0", Code: 31, At: boot.Add(time.Microsecond), Text: "Ch 0000000b, engmask 00000120"},
		"3,2,0,-;NVRM: Xid (PCI:00000000:AB:00): 154, GPU recovery action changed":      {PCI: "0000:ab:00.0", Code: 154, At: boot, Text: "GPU recovery action changed"},
		"3,2,0,-;NVRM: GPU at PCI:0000:01:00: GPU-bc0fa0b9-cac2-f507-b715-9bebdb69c71e": {},
		"3,2,x,-;NVRM: Xid (PCI:0000:3b:00): 79, text":                                  {},
		"3;NVRM: Xid (PCI:0000:3b:00): 79, text":                                        {},
		"3,2,1,-;NVRM: Xid (PCI:zz): 79, text":                                          {},
		"3,2,1,-;NVRM: Xid (PCI:0000:3b:00): 99999999999999999999, text":                {},
		"": {},
	} {
		got, ok := Parse(in, boot)
		if diff := cmp.Diff(want, got); diff != "" || ok != (want.PCI != "") {
			t.Errorf("%q (-want +got):\n%s", in, diff)
		}
	}
}

// TestFold: repeats are one, causes come first, and what follows a cause is its
// victim, also when the log has it just before.
func TestFold(t *testing.T) {
	t.Parallel()
	at := func(s int) time.Time { return boot.Add(time.Duration(s) * time.Second) }
	const gpu, other = "0000:3b:00.0", "0000:86:00.0"
	got := Fold([]Event{
		{gpu, 45, at(99), "the log's order"}, {gpu, 48, at(100), "DBE"}, {gpu, 45, at(101), "a"}, {gpu, 45, at(102), "b"}, {gpu, 63, at(103), "row"},
		{gpu, 13, at(104), "in the wake"}, {gpu, 31, at(500), "a program"}, {gpu, 31, at(400), "a program"},
		{other, 45, at(101), "alone"}, {other, 43, at(900), "alone"},
	})
	want := map[string][]report.XID{
		gpu: {
			{Code: 63, Class: report.ClassHardware, Count: 1, First: at(103), Last: at(103), Text: "row"},
			{Code: 48, Class: report.ClassHardware, Count: 1, First: at(100), Last: at(100), Text: "DBE"},
			{Code: 31, Class: report.ClassApplication, Count: 2, First: at(400), Last: at(500), Text: "a program"},
			{Code: 13, Class: report.ClassApplication, Count: 1, First: at(104), Last: at(104), VictimOf: 63, Text: "in the wake"},
			{Code: 45, Class: report.ClassVictim, Count: 3, First: at(99), Last: at(102), VictimOf: 63, Text: "b"},
		},
		other: {
			{Code: 43, Class: report.ClassVictim, Count: 1, First: at(900), Last: at(900), Text: "alone"},
			{Code: 45, Class: report.ClassVictim, Count: 1, First: at(101), Last: at(101), Text: "alone"},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, x := range got[other] {
		if x.Cause() {
			t.Errorf("XID %d accuses the device", x.Code)
		}
	}
}

func TestReadFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "kmsg")
	log := "6,1,10,-;something else\n" + strings.Repeat("x", 3*maxRecord) + "\n3,2,2000000,-;NVRM: Xid (PCI:0000:3b:00): 63, Row Remapper: New row marked for remapping, reset gpu to activate.\n" +
		"3,3,3000000,-;NVRM: Xid (PCI:0000:3b:00): 79, last line without its end"
	if err := os.WriteFile(path, []byte(log), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := Read(path, boot)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || got[0].Code != 63 || got[1].Code != 79 || !got[1].At.Equal(boot.Add(3*time.Second)) {
		t.Errorf("got %+v", got)
	}
	if _, err := Read(filepath.Join(t.TempDir(), "none"), boot); err == nil {
		t.Error("a log that is not there was read")
	}
}

// TestBootTime: records of the running kernel are dated within its life.
func TestBootTime(t *testing.T) {
	t.Parallel()
	now := time.Now()
	got, err := BootTime(now)
	if err != nil || !got.Before(now) {
		t.Errorf("booted at %v, now %v: %v", got, now, err)
	}
}
