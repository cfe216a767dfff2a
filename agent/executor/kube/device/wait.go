package device

import (
	"context"
	"fmt"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster"
	"github.com/opsplane/opsplane/agent/executor/kube/follow"
	"github.com/opsplane/opsplane/shared/protocol"
)

// await waits for a Job's answer by one watch on its pods. It always comes back:
// the Job has a deadline of its own.
func (e *devices) await(ctx context.Context, t *executor.Task, d target, verb string, job *batchv1.Job) heard {
	under, cancel := context.WithCancel(ctx)
	defer cancel()
	watched := e.watch(under, job.Name)
	w := &waiting{e: e, t: t, d: d, verb: verb, job: job, begun: time.Now()}
	defer blocked(t)
	cancelled := t.Cancelled
	if !t.Step.Interruptible {
		cancelled = nil
	}
	late := time.NewTimer(e.limit(t, verb) + lateBy)
	defer late.Stop()
	patient := time.NewTimer(patience)
	defer patient.Stop()
	defer w.forgive()
	look := time.NewTicker(nodeLook)
	defer look.Stop()
	var looked <-chan glimpse          // how the node is; nil: it is not looked at
	var asked <-chan *protocol.Blocker // why there is no pod; nil: it is not asked for
	defer e.c.Pulse.Listen()()
	for {
		pods, changed := watched.look()
		_, _, failed, _ := watched.State()
		_, beat := e.c.Pulse.State()
		away, denied := follow.Trouble(e.c.Pulse, watched)
		if end := w.told(pods, denied, away); end != nil {
			return *end
		}
		var end *heard
		select {
		case <-changed:
		case <-failed:
		case <-beat:
		case <-patient.C:
			w.impatient = true
			end = w.see(w.last)
			asked = w.podless(under)
		case <-w.pull():
			w.failing = true
			end = w.see(w.last)
		case <-look.C:
			if looked == nil && away == nil {
				looked = w.node(under)
			}
			if asked == nil && away == nil && w.impatient && w.last.pod == nil {
				asked = w.podless(under)
			}
		case b := <-asked:
			asked = nil
			w.refused(b)
		case g := <-looked:
			looked = nil
			end = w.seen(g)
		case <-late.C:
			end = &heard{stopped: "late", ran: w.mayRun(), unseen: w.last.pod == nil, code: w.code,
				why: strings.TrimSuffix(fmt.Sprintf("job %s did not answer in its time: %s", job.Name, w.why), ": ")}
		case <-cancelled:
			end = &heard{stopped: "cancelled", ran: w.mayRun()}
		case <-ctx.Done():
			end = &heard{stopped: "interrupted", ran: w.mayRun(), code: w.code, why: w.why}
		}
		if end != nil {
			return *end
		}
	}
}

// told judges what the watch has brought, or why it brings nothing; nil: go on waiting.
func (w *waiting) told(pods []seenPod, denied error, away *cluster.Unanswered) *heard {
	w.deaf = away != nil
	for _, s := range pods {
		if end := w.see(s); end != nil {
			return end
		}
	}
	switch {
	case denied != nil:
		o := cluster.Broken(denied)
		return &heard{ran: true, code: o.ErrorCode, why: o.Detail}
	case away != nil:
		w.show(away.Blocker())
	case w.code == cluster.CodeUnavailable: // it answers again
		w.code, w.why = "", ""
		blocked(w.t)
		return w.see(w.last)
	}
	return nil
}

// waiting is a wait for one Job.
type waiting struct {
	e         *devices
	t         *executor.Task
	d         target
	verb      string
	job       *batchv1.Job
	begun     time.Time
	last      seenPod
	impatient bool
	named     bool // why there is no pod is known
	deaf      bool // the API server does not answer
	// pulling runs since the image's pull was seen to fail, nil: it does not; failing:
	// it has failed for as long as is waited for a registry.
	pulling   *time.Timer
	failing   bool
	code, why string // what it waits for
}

func (w *waiting) block(code, why string) {
	w.show(protocol.Blocker{Code: code, Resource: w.resource(), Detail: why})
}

func (w *waiting) resource() string { return "job/" + w.job.Namespace + "/" + w.job.Name }

func (w *waiting) show(b protocol.Blocker) {
	if w.code == b.Code && w.why == b.Detail {
		return
	}
	w.code, w.why = b.Code, b.Detail
	blocked(w.t, b)
}

// pull is told when the image's pull has failed for long enough.
func (w *waiting) pull() <-chan time.Time {
	if w.pulling == nil {
		return nil
	}
	return w.pulling.C
}

// forgive ends the count of a pull that failed.
func (w *waiting) forgive() {
	if w.pulling != nil {
		w.pulling.Stop()
	}
	w.pulling, w.failing = nil, false
}

// glimpse is what a look at the node told: why nothing runs there, nil: it may.
type glimpse struct {
	away *absence
	err  error
}

// node looks whether the node answers, beside the wait: where it does not, its pods
// are frozen as they were.
func (w *waiting) node(ctx context.Context) <-chan glimpse {
	state := make(chan glimpse, 1)
	go func() {
		away, err := w.e.nodeState(ctx, w.d.node)
		state <- glimpse{away, err}
	}()
	return state
}

// seen judges a look at the node; nil: go on waiting.
func (w *waiting) seen(g glimpse) *heard {
	switch {
	case g.err != nil: // nobody can say
	case g.away != nil:
		w.show(g.away.blocker(w.resource()))
	case w.code == codeUnreachable: // it is back
		w.code, w.why = "", ""
		blocked(w.t)
		return w.see(w.last)
	}
	return nil
}

// codeNoPod is the code of a Job without a pod of which nobody says why.
const codeNoPod = "no_pod"

// waitsForPod tells whether what was shown last is that there is no pod.
func (w *waiting) waitsForPod() bool {
	return w.code == codeNoPod || w.code == cluster.CodeQuota || w.code == cluster.CodeCreateRefused
}

// mayRun tells whether the Job's container may have been started.
func (w *waiting) mayRun() bool {
	if w.last.pod == nil {
		return true // its pod may come at any moment
	}
	return !w.last.gone && !finished(w.last.pod) || started(w.last.pod)
}

// see judges the Job's pod; nil: go on waiting.
func (w *waiting) see(s seenPod) *heard {
	if s.pod != nil && !metav1.IsControlledBy(s.pod, w.job) {
		return nil // anybody's pod may have the label
	}
	w.last = s
	p := s.pod
	if p == nil {
		if w.impatient && !(w.named && w.waitsForPod()) {
			w.block(codeNoPod, fmt.Sprintf("the cluster made no pod for job %s: does the namespace's pod security level allow privileged pods, and is service account %q there?",
				w.job.Name, w.e.cfg.ServiceAccount))
		}
		return nil
	}
	if w.waitsForPod() { // it came late
		w.code, w.why = "", ""
		blocked(w.t)
	}
	if st := terminated(p); st != nil {
		a, err := w.e.read(w.t, w.d, w.verb, p, st)
		if err != nil {
			return &heard{ran: true, code: "bad_answer", why: fmt.Sprintf("pod %s ended with code %d (%s): %v", p.Name, st.ExitCode, st.Reason, err)}
		}
		return &heard{answer: &a, ran: true}
	}
	if s.gone || finished(p) {
		why := strings.TrimSpace(p.Status.Reason + " " + p.Status.Message)
		if s.gone && why == "" {
			why = "it was deleted"
		}
		return &heard{ran: started(p), code: failureCode(p), why: fmt.Sprintf("pod %s of job %s ended without an answer: %s", p.Name, w.job.Name, why)}
	}
	if code, why, final := stuck(p); code != "" {
		if final || w.failing && code == "image_pull_failed" {
			return &heard{ran: started(p), code: code, why: why}
		}
		if code == "image_pull_failed" && w.pulling == nil {
			w.pulling = time.NewTimer(w.e.cfg.PullPatience)
		}
		w.block(code, why)
		return nil
	}
	w.forgive()
	if started(p) && w.code != codeUnreachable && !w.deaf {
		w.code, w.why = "", ""
		blocked(w.t)
	}
	return nil
}
