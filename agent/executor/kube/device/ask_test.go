package device

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/host/report"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// TestWhoseAnswer: an answer is believed of the Job's own pod alone, and if it says
// of which node and device it speaks.
func TestWhoseAnswer(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		verb     string
		pod      func(p *corev1.Pod)
		answer   func(a *report.Answer)
		ignored  bool // the pod is none of the Job's
		believed bool // else what is wrong with it:
		says     string
	}{
		"its own":                   {verb: report.VerbReset, believed: true},
		"a pod with the label":      {verb: report.VerbReset, pod: func(p *corev1.Pod) { p.OwnerReferences = nil }, ignored: true},
		"a Job of the same name":    {verb: report.VerbReset, pod: func(p *corev1.Pod) { p.OwnerReferences[0].UID = "another" }, ignored: true},
		"no controller":             {verb: report.VerbReset, pod: func(p *corev1.Pod) { p.OwnerReferences[0].Controller = nil }, ignored: true},
		"no device":                 {verb: report.VerbReset, answer: func(a *report.Answer) { a.Device = nil }, says: "which device"},
		"no device, verified":       {verb: report.VerbVerify, answer: func(a *report.Answer) { a.Device = nil }, says: "which device"},
		"no device, a mark":         {verb: report.VerbMark, answer: func(a *report.Answer) { a.Device = nil }, believed: true},
		"no device, refused":        {verb: report.VerbReset, answer: func(a *report.Answer) { a.Device, a.OK, a.Code = nil, false, report.CodeGone }, believed: true},
		"a device that was cut off": {verb: report.VerbReset, answer: func(a *report.Answer) { a.Device, a.Cut = nil, []string{"device"} }, believed: true},
		"all that was cut off":      {verb: report.VerbReset, answer: func(a *report.Answer) { a.Device, a.Node, a.Cut = nil, "", []string{"everything else"} }, believed: true},
		"another node":              {verb: report.VerbReset, answer: func(a *report.Answer) { a.Node = "gpu-2" }, says: `node "gpu-2"`},
		"no node":                   {verb: report.VerbMark, answer: func(a *report.Answer) { a.Node = "" }, says: `node ""`},
	} {
		e, _, _ := fakes(t)
		task := stepTask("op_a", 1, 1)
		j := asked(e, task, c.verb, time.Now(), time.Time{})
		a := yes(task, c.verb)
		if c.answer != nil {
			c.answer(&a)
		}
		p := podOf(j, said(a))
		if c.pod != nil {
			c.pod(p)
		}
		w := &waiting{e: e, t: quiet(task), d: target{fakeUUID, fakeNode}, verb: c.verb, job: j}
		switch h := w.see(seenPod{pod: p}); {
		case c.ignored:
			if h != nil || w.last.pod != nil {
				t.Errorf("%s: heard %+v", name, h)
			}
		case h == nil || c.believed != (h.answer != nil) || !strings.Contains(h.why, c.says):
			t.Errorf("%s: heard %+v", name, h)
		}
	}
}

// TestPullPatience: a registry that fails for a while fails no step; one that goes on
// failing does, and says why.
func TestPullPatience(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		reason string
		heals  time.Duration // 0: never
		within time.Duration
		code   string
	}{
		"a hiccup":      {"ImagePullBackOff", 50 * time.Second, 51 * time.Second, ""},
		"an error":      {"ErrImagePull", 10 * time.Second, 11 * time.Second, ""},
		"it goes on":    {"ImagePullBackOff", 0, DefaultPullPatience + time.Second, "image_pull_failed"},
		"no such name":  {"InvalidImageName", 0, time.Second, "image_pull_failed"},
		"not by itself": {"ErrImageNeverPull", 0, time.Second, "image_pull_failed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				e, _, pods := fakes(t)
				task := stepTask("op_a", 1, 1)
				shown := (&blockers{}).of(task)
				j := asked(e, task, report.VerbPreflight, time.Now(), time.Time{})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				end, begun := make(chan heard, 1), time.Now()
				go func() { end <- e.await(ctx, task, target{fakeUUID, fakeNode}, report.VerbPreflight, j) }()
				pods.Modify(podOf(j, pullFails(c.reason)))
				if c.heals > 0 {
					time.Sleep(c.heals)
					pods.Modify(podOf(j, said(yes(task, report.VerbPreflight))))
				}
				h := <-end
				if h.code != c.code || (h.answer != nil) != (c.code == "") || time.Since(begun) > c.within {
					t.Errorf("after %s: %+v", time.Since(begun), h)
				}
				if c.within > time.Second && !shown.has("image_pull_failed") {
					t.Errorf("what it waits for was not shown: %+v", shown.all)
				}
			})
		})
	}
}

// TestProbeReadsWhatWasAsked: a mark that an earlier probe asked for, of whatever
// generation, is read and not asked for again; one from before the run's last reset
// ended is none, nor is one that tells of a reset under way.
func TestProbeReadsWhatWasAsked(t *testing.T) {
	t.Parallel()
	noon := time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)
	older := stepTask("op_a", 1, 1)
	mark := func(state string) report.Answer {
		a := yes(older, report.VerbMark)
		a.Device, a.Mark = nil, &report.Mark{State: state, Operation: "op_a", Run: 1, Generation: 1}
		return a
	}
	busy := mark(report.MarkStarted)
	busy.OK, busy.Code = false, report.CodeInProgress
	for name, c := range map[string]struct {
		reset  time.Time // ended, zero: there is no Job of one
		asked  time.Time
		over   bool
		says   *report.Answer // nil: it has not answered
		phase  operation.StepPhase
		detail string
		made   int
	}{
		"answered after it":         {reset: noon, asked: noon.Add(2 * time.Second), over: true, says: new(mark(report.MarkDone)), phase: operation.StepSucceeded, detail: "generation 1"},
		"nothing was reset":         {reset: noon, asked: noon.Add(2 * time.Second), over: true, says: new(mark(report.MarkNone)), phase: operation.StepPending, detail: "no reset"},
		"the reset's Job is gone":   {asked: noon, over: true, says: new(mark(report.MarkDone)), phase: operation.StepSucceeded},
		"answered, not counted yet": {reset: noon, asked: noon.Add(2 * time.Second), says: new(mark(report.MarkDone)), phase: operation.StepSucceeded},
		"still owed":                {reset: noon, asked: noon.Add(2 * time.Second), phase: operation.StepUnknown, detail: "has not answered"},
		"asked before":              {reset: noon, asked: noon.Add(-time.Second), over: true, says: new(mark(report.MarkNone)), phase: operation.StepUnknown, made: 1},
		"asked in the same second":  {reset: noon, asked: noon, over: true, says: new(mark(report.MarkNone)), phase: operation.StepUnknown, made: 1},
		"a reset was under way":     {reset: noon, asked: noon.Add(2 * time.Second), over: true, says: &busy, phase: operation.StepUnknown, made: 1},
		"its pod is gone":           {reset: noon, asked: noon.Add(2 * time.Second), over: true, phase: operation.StepUnknown, made: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				e, client, _ := fakes(t)
				add := func(j *batchv1.Job, s *corev1.PodStatus) {
					err := client.Tracker().Add(j)
					if err == nil && s != nil {
						err = client.Tracker().Add(podOf(j, *s))
					}
					if err != nil {
						t.Fatal(err)
					}
				}
				if !c.reset.IsZero() {
					add(asked(e, older, report.VerbReset, c.reset.Add(-time.Minute), c.reset), nil)
				}
				var over time.Time
				if c.over {
					over = c.asked.Add(20 * time.Second)
				}
				var s *corev1.PodStatus
				switch {
				case c.says != nil:
					s = new(said(*c.says))
				case !c.over:
					s = &corev1.PodStatus{Phase: corev1.PodPending}
				}
				add(asked(e, older, report.VerbMark, c.asked, over), s)
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				f := e.probeReset(ctx, stepTask("op_a", 1, 3))
				if f.Phase != c.phase || !strings.Contains(f.Detail, c.detail) {
					t.Errorf("found %+v, want %s %s", f, c.phase, c.detail)
				}
				if n := made(client, "jobs", ""); n != c.made {
					t.Errorf("%d jobs were made, want %d", n, c.made)
				}
			})
		})
	}
}

// TestMemoryIsOfARun: a new run tells nothing of what the one before it did.
func TestMemoryIsOfARun(t *testing.T) {
	t.Parallel()
	e, _, _ := fakes(t)
	first, second := stepTask("op_a", 1, 1).Assignment, stepTask("op_a", 2, 2).Assignment
	e.note(first, func(o *outcome) {
		o.drained, o.already, o.took, o.stages = []string{"serve/a"}, true, 900, []stage{{Step: "reset", MS: 900}}
		o.device = &report.Device{UUID: fakeUUID, Health: report.HealthOK}
	})
	for _, c := range []struct {
		a    *protocol.Assignment
		want string
	}{{first, "serve/a"}, {second, ""}} {
		var end executor.Ending
		e.observe(t.Context(), c.a, &end)
		var d details
		if err := json.Unmarshal(end.Details, &d); err != nil {
			t.Fatal(err)
		}
		if strings.Join(d.Evicted, " ") != c.want || d.Already != (c.want != "") || (d.ResetMS > 0) != (c.want != "") || (len(d.Stages) > 0) != (c.want != "") {
			t.Errorf("run %d: %s", c.a.Run, end.Details)
		}
	}
}

// TestVerifiedWithoutTheKernelsLog: what nobody looked at is not verified.
func TestVerifiedWithoutTheKernelsLog(t *testing.T) {
	t.Parallel()
	const claim = "reported no error since the reset"
	for name, c := range map[string]struct {
		read, asked bool
		open        string // what is not verified
	}{
		"it was read":         {read: true, asked: true},
		"it was not":          {asked: true, open: "that GPU " + fakeUUID + " reported no XID since the reset: it is not known that the kernel's log of its host was read"},
		"another lease asked": {open: "that GPU " + fakeUUID + " reported no XID since the reset: another lease had the host's word"},
	} {
		e, client, _ := fakes(t)
		task := stepTask("op_a", 1, 1)
		answers(t, client, func(int) report.Answer {
			a := yes(task, report.VerbVerify)
			a.XIDsRead = c.read
			return a
		})
		if c.asked {
			if o := e.step(e.verify)(t.Context(), task); o.Class != operation.OutcomeDone {
				t.Fatalf("%s: %+v", name, o)
			}
		}
		e.note(task.Assignment, func(o *outcome) { o.device = &report.Device{UUID: fakeUUID, Health: report.HealthOK} })
		task.Assignment.Steps = []protocol.Step{{PlanStep: operation.PlanStep{ID: "stp_v", Name: "verify"}, Phase: operation.StepSucceeded}}
		var end executor.Ending
		e.observe(t.Context(), task.Assignment, &end)
		if len(end.Verified) != 1 || !strings.Contains(end.Verified[0], "its memory can be asked for") || strings.Contains(end.Verified[0], claim) != c.read {
			t.Errorf("%s: verified %q", name, end.Verified)
		}
		if all := strings.Join(end.NotVerified, "; "); strings.Contains(all, "XID") != (c.open != "") || !strings.Contains(all, c.open) {
			t.Errorf("%s: not verified %q", name, end.NotVerified)
		}
	}
}

// TestEventIsOfTheNode: kubectl describe node finds events by the node's name as UID.
func TestEventIsOfTheNode(t *testing.T) {
	t.Parallel()
	e, client, _ := fakes(t)
	task := stepTask("op_a", 1, 1)
	a := yes(task, report.VerbReset)
	if o := e.wasReset(t.Context(), task, target{fakeUUID, fakeNode}, &a); o.Class != operation.OutcomeDone {
		t.Fatalf("%+v", o)
	}
	list, err := client.CoreV1().Events(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 || list.Items[0].InvolvedObject.UID != types.UID(fakeNode) || list.Items[0].InvolvedObject.Name != fakeNode {
		t.Errorf("events %+v, %v", list.Items, err)
	}
}

// TestOldReport: what a host said some time ago is nothing to drain, preview or
// observe by: its program may be dead, and other pods on the device.
func TestOldReport(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for name, c := range map[string]struct {
		at   time.Time
		says string
	}{
		"before the node":    {now.Add(-2 * time.Minute), "another machine"},
		"now":                {now, ""},
		"a minute ago":       {now.Add(-time.Minute), ""},
		"past its age":       {now.Add(-report.MaxAge - time.Second), "its last report is of"},
		"yet to come":        {now.Add(report.MaxAge + time.Minute), "clocks"},
		"it does not say so": {time.Time{}, "does not say"},
	} {
		h := report.Host{Node: fakeNode, Source: report.SourceNVML, At: c.at, Devices: []report.Device{{UUID: fakeUUID, PCI: "0000:3b:00.0", Health: report.HealthOK,
			Holders: []report.Holder{{Kind: report.HolderProcess, Count: 1, Pod: &report.Pod{UID: "uid-a"}}}}}}
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: fakeNS, Name: report.Name(fakeNode)}, Data: map[string]string{report.Key: string(h.Data())}}
		e, client, _ := fakes(t, m, worker("a"))
		anew := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fakeNode, UID: "uid-of-the-node", CreationTimestamp: metav1.NewTime(now.Add(-90 * time.Second))}}
		if _, err := client.CoreV1().Nodes().Update(t.Context(), anew, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		on := PodsOn(&cluster.Cluster{Client: e.c.Client, Namespace: fakeNS, Now: func() time.Time { return now }},
			func(context.Context, types.UID) (string, error) { return fakeNode, nil })
		pods, reason, err := on(t.Context(), "uid-of-the-node", fakeUUID)
		if err != nil || (reason == "") != (c.says == "") || !strings.Contains(reason, c.says) || (len(pods) == 1) != (c.says == "") {
			t.Errorf("%s: %v %q %v", name, pods, reason, err)
		}
		var end executor.Ending
		e.observe(t.Context(), stepTask("op_a", 1, 1).Assignment, &end)
		if (end.Observed != nil) != (c.says == "") {
			t.Errorf("%s: observed %+v", name, end.Observed)
		}
	}
}
