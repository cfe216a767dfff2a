package worker_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
	"github.com/opsplane/opsplane/shared/worker"
)

// TestPanicOfOneStream: judging a stream panics, in react and then in the sweep.
// Neither ends by it, the other streams are judged, it is counted, and the stream is
// judged when it can be.
func TestPanicOfOneStream(t *testing.T) {
	t.Parallel()
	p := setup(t)
	ctx := t.Context()
	p.rule("hot", alert.Rule{For: alert.Duration(5 * time.Second)})
	const bad, good = "clu_bad", "clu_good"
	p.happens(bad, "hot", "n0")
	p.happens(good, "hot", "n1")
	spring := func(_ int, ws []ledger.Write) error {
		if touches(ws, record.JudgedPK(bad)) {
			panic(fmt.Sprint("at ", len(ws), " writes"))
		}
		return nil
	}
	p.tap.commit = spring
	h := p.reactFunction(p.reacting())
	batch := p.heads()
	if out, err := invoke(ctx, h.Handle, worker.StreamEvent{Records: batch}); err != nil || out != none {
		t.Fatalf("answer %s, %v", out, err)
	}
	if d := cmp.Diff([]string{"pending hot n1"}, p.alarmed(good)); d != "" {
		t.Error(d)
	}
	for _, want := range []string{`"StreamsUnjudged":1`, `"reactor_panics_total":1`} {
		if !strings.Contains(p.metrics.String(), want) {
			t.Errorf("metrics without %s: %s", want, p.metrics.String())
		}
	}
	p.tap.reset()
	p.pass(3 * time.Second) // its pause is over
	if out, err := invoke(ctx, h.Handle, worker.StreamEvent{Records: batch}); err != nil || out != none {
		t.Fatalf("answer %s, %v", out, err)
	}

	p.tap.commit = spring
	p.pass(3 * time.Second)
	s := p.sweepFunction()
	s.Sweep.React = worker.Timers(p.reacting().Follow)
	if out, err := invoke(ctx, s.Handle, fromQueue(wakeFor(p.now()))); err != nil || out != none {
		t.Fatalf("answer %s, %v", out, err)
	}
	if d := cmp.Diff([]string{"pending hot n1", "firing hot n1"}, p.alarmed(good)); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"pending hot n0"}, p.alarmed(bad)); d != "" {
		t.Error(d)
	}
	p.tap.reset()
	p.pass(3 * time.Second)
	if out, err := invoke(ctx, s.Handle, fromQueue(wakeFor(p.now()))); err != nil || out != none {
		t.Fatalf("answer %s, %v", out, err)
	}
	if d := cmp.Diff([]string{"pending hot n0", "firing hot n0"}, p.alarmed(bad)); d != "" {
		t.Error(d)
	}
}
