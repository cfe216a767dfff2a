package inventory

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor/host/report"
)

// A report that is not renewed is not believed for ever: what was well is degraded,
// without a word from anybody, and well again with the next report.
func TestReportAges(t *testing.T) {
	t.Parallel()
	w := newWorld(Options{}).start(t)
	w.put(t, w.nodes, aNode("n", "u", 2), aNode("counted", "v", 1))
	w.put(t, w.hosts, aReport(t, "n", report.Device{UUID: uuid(0)}, report.Device{UUID: uuid(1), Index: 1, Health: report.HealthUnusable, Detail: "gone"}))
	w.told()
	age := func(d time.Duration) []string {
		w.hands.pass(d)
		w.mu.Lock()
		w.age()
		w.mu.Unlock()
		return w.happened()
	}
	if got := age(report.MaxAge); len(got) != 0 {
		t.Errorf("at the limit: %v", got)
	}
	if diff := cmp.Diff([]string{"device.degraded " + uuid(0)}, age(time.Second)); diff != "" {
		t.Errorf("past it (-want +got):\n%s", diff)
	}
	for _, d := range w.snapshot().Devices {
		want, says := report.HealthDegraded, "not heard of"
		switch {
		case d.NodeName == "counted":
			want, says = report.HealthOK, ""
		case d.UID == uuid(1):
			want, says = report.HealthUnusable, "gone"
		}
		if d.Health != want || !strings.Contains(d.Detail, says) {
			t.Errorf("device %s is %s: %s; want %s: %s", d.UID, d.Health, d.Detail, want, says)
		}
	}
	if got := age(time.Hour); len(got) != 0 {
		t.Errorf("much later: %v", got)
	}
	// An agent that starts now comes to the same, without having seen it age.
	heir := newWorld(Options{})
	heir.hands.pass(time.Hour)
	heir.list(t, heir.nodes, aNode("n", "u", 1))
	heir.list(t, heir.hosts, aReport(t, "n", report.Device{UUID: uuid(0)}))
	heir.start(t)
	heir.put(t, heir.nodes, aNode("n", "u", 1))
	heir.put(t, heir.hosts, aReport(t, "n", report.Device{UUID: uuid(0)}))
	if got := heir.snapshot().Devices; len(got) != 1 || got[0].Health != report.HealthDegraded {
		t.Errorf("of an agent that starts: %+v", got)
	}
	w.hands.pass(-time.Hour - report.MaxAge) // as the report that is next says
	w.put(t, w.hosts, aReport(t, "n", report.Device{UUID: uuid(0)}, report.Device{UUID: uuid(1), Index: 1}))
	if diff := cmp.Diff([]string{"device.recovered " + uuid(0), "device.recovered " + uuid(1)}, w.happened()); diff != "" {
		t.Errorf("renewed (-want +got):\n%s", diff)
	}
}

// TestReportBesideAClockThatIsWrong: the agent's clock may be set by minutes, which says
// nothing of the fleet's hosts. A report is too old once both clocks say so.
func TestReportBesideAClockThatIsWrong(t *testing.T) {
	t.Parallel()
	for name, off := range map[string]time.Duration{"ahead": time.Hour, "behind": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(Options{}).start(t)
			right := w.hands.now()
			w.server = func() time.Time { return right }
			w.put(t, w.nodes, aNode("n", "u", 1))
			w.put(t, w.hosts, aReport(t, "n", report.Device{UUID: uuid(0)}))
			w.told()
			w.hands.pass(off)
			age := func() []string {
				w.mu.Lock()
				w.age()
				w.mu.Unlock()
				return w.happened()
			}
			if got := age(); len(got) != 0 {
				t.Errorf("the agent's clock was set: %v", got)
			}
			right = right.Add(report.MaxAge + time.Second)
			if diff := cmp.Diff([]string{"device.degraded " + uuid(0)}, age()); diff != "" {
				t.Errorf("its host is silent (-want +got):\n%s", diff)
			}
		})
	}
}

// TestReportGrowsNoYounger: an agent's clock that is minutes behind comes past the time of the
// last report of a host that has died since. The host is dead all the same.
func TestReportGrowsNoYounger(t *testing.T) {
	t.Parallel()
	const behind = 8 * time.Minute
	w := newWorld(Options{}).start(t)
	right := w.hands.now()
	w.server = func() time.Time { return right }
	w.put(t, w.nodes, aNode("n", "u", 1))
	w.put(t, w.hosts, aReport(t, "n", report.Device{UUID: uuid(0)}))
	w.told()
	w.hands.pass(-behind)
	for i, want := range [][]string{{"device.degraded " + uuid(0)}, nil, nil, nil} {
		w.hands.pass(report.MaxAge + time.Second)
		right = right.Add(report.MaxAge + time.Second)
		w.mu.Lock()
		w.age()
		w.mu.Unlock()
		if diff := cmp.Diff(want, w.happened()); diff != "" {
			t.Errorf("look %d (-want +got):\n%s", i, diff)
		}
	}
}

// A node that was made anew under its name does not have the GPUs that the machine
// before it reported, until its own host reports.
func TestReportOfAnotherMachine(t *testing.T) {
	t.Parallel()
	w := newWorld(Options{}).start(t)
	old := aNode("n", "u", 1)
	old.CreationTimestamp = metav1.NewTime(w.hands.now().Add(-time.Hour))
	w.put(t, w.nodes, old)
	w.put(t, w.hosts, aReport(t, "n", report.Device{UUID: uuid(0)}))
	if got := w.snapshot().Devices; len(got) != 1 || got[0].UID != uuid(0) {
		t.Fatalf("of the machine: %+v", got)
	}
	w.remove(t, w.nodes, old)
	anew := aNode("n", "v", 1)
	anew.CreationTimestamp = metav1.NewTime(w.hands.now().Add(time.Second))
	w.put(t, w.nodes, anew)
	if got := w.snapshot().Devices; len(got) != 1 || !unidentified(got[0].UID) || got[0].NodeUID != "v" {
		t.Errorf("of the next one: %+v", got)
	}
}
