package loop

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

const mute = "the API server does not answer: context deadline exceeded"

// soon is how soon a lease that is held learns that what was silent answers: the try
// under way goes unanswered, and the next one follows at most unansweredMost later.
const soon = 8*time.Second + unansweredMost*6/5 + time.Second

// silence is an API server that answers the probes of a step or lets them run out.
type silence struct {
	away  atomic.Bool
	takes atomic.Int64 // how long a try goes unanswered, in nanoseconds
	tries atomic.Int64 // that went unanswered
}

// mutes lets the probes of a step go unanswered until the silence is over.
func (b *bench) mutes(name string, then func(*executor.Task) executor.Finding) *silence {
	s := &silence{}
	s.away.Store(true)
	s.takes.Store(int64(8 * time.Second))
	b.exec.probe[name] = func(t *executor.Task) executor.Finding {
		if !s.away.Load() {
			return then(t)
		}
		s.tries.Add(1)
		pause(context.Background(), min(time.Duration(s.takes.Load()), t.Remaining()))
		return executor.Unknown(codeSilent, mute)
	}
	return s
}

func found(*executor.Task) executor.Finding { return executor.Found("it holds") }
func toRun(*executor.Task) executor.Finding { return executor.ToRun("half done") }

// loses leaves a step of the first generation without an answer: nobody knows what
// became of it.
func (b *bench) loses(name string) {
	b.exec.execute[name] = func(ctx context.Context, task *executor.Task) executor.Outcome {
		if task.Assignment.Generation == 1 {
			b.world.issue(task.Assignment.Operation, name, 1)
			return executor.Ambiguous("the answer never came")
		}
		return b.exec.effect(ctx, task)
	}
}

// hands has the first generation hand a step over, half done.
func (b *bench) hands(name string) {
	b.exec.execute[name] = func(ctx context.Context, task *executor.Task) executor.Outcome {
		if task.Assignment.Generation == 1 {
			return executor.HandBack("own_node", "2 of 3 are gone")
		}
		return b.exec.effect(ctx, task)
	}
}

// told waits until the operation says that nothing answers, under a later lease.
func (b *bench) told(t *testing.T, op string) {
	t.Helper()
	b.plane.wait(t, time.Minute, "what does not answer is told", func() bool {
		s := b.plane.ops[op].State
		x := standing(s)
		return s.Generation == 2 && x != nil && x.Code == codeSilent
	})
}

// TestUnknownOutlastsSilence: while nothing can tell what became of a step, the
// operation says so, since when. The lease is given back in between, for a person who
// knows and for another agent, and once something answers the step is settled soon.
func TestUnknownOutlastsSilence(t *testing.T) {
	for _, tc := range []struct {
		name   string
		back   func(operation.State) bool
		within time.Duration
	}{
		{"back in a lease", func(s operation.State) bool { return s.Lease != nil && time.Since(s.Lease.From) > 20*time.Second }, soon},
		// Its own doorbell is put off in steps of incompatibleFor.
		{"back between two", func(s operation.State) bool { return s.Lease == nil }, executor.HandBackFor + incompatibleFor + 2*time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				b.loses("cordon")
				server := b.mutes("cordon", found)
				b.start()
				op := b.plane.submit("silence", time.Hour, drainPlan()...)
				b.told(t, op)
				s := b.plane.state(op)
				x := standing(s)
				if x.Detail != mute || x.Since == nil || x.Since.Sub(s.Lease.From) > time.Second || s.Progress.Step != "cordon" {
					t.Errorf("blocker %+v, the lease is from %s, step %s", x, s.Lease.From, s.Progress.Step)
				}
				time.Sleep(10 * time.Minute) // the bubble's time, as everywhere here
				b.plane.wait(t, 2*time.Minute, tc.name, func() bool { return tc.back(b.plane.ops[op].State) })
				s = b.plane.state(op)
				if s.Phase != operation.Reconciling || s.Probes != 0 || s.Steps[1].Phase != operation.StepUnknown || standing(s) == nil {
					t.Errorf("%s after %d probes, cordon %s, blocker %v", s.Phase, s.Probes, s.Steps[1].Phase, standing(s))
				}
				server.away.Store(false)
				b.plane.wait(t, tc.within, "settled", func() bool { return b.plane.ops[op].State.Steps[1].Phase == operation.StepSucceeded })
				s = b.plane.ended(t, op, 5*time.Second)
				if s.Phase != operation.Succeeded || standing(s) != nil {
					t.Errorf("ended %s, blocker %v", s.Phase, standing(s))
				}
				if diff := cmp.Diff([]string{"cordon/1", fmt.Sprintf("evict/%d", s.Generation)}, b.world.issued()); diff != "" {
					t.Error(diff)
				}
				leases := s.Assignments[1:]
				if n := len(leases); n < 6 || n > 9 {
					t.Errorf("%d leases in 11 minutes", n)
				}
				paced(t, leases)
				steps := 0 // it begins, is unknown, and settled
				for _, e := range b.plane.entries[op] {
					if e.Kind == operation.EntryStep && e.Step == "cordon" {
						steps++
					}
				}
				if steps != 3 {
					t.Errorf("%d entries of the step", steps)
				}
			})
		})
	}
}

// paced tells whether leases that end in silence are held for long enough, and are far
// enough apart, that generations are not used up.
func paced(t *testing.T, leases []operation.Assignment) {
	t.Helper()
	for i, a := range leases[:len(leases)-1] {
		held := a.Until.Sub(a.From)
		if a.Ended != "handed_back" || held < holdUnknown || held > holdUnknown+soon {
			t.Errorf("lease %d was held for %s and %s", a.Generation, held, a.Ended)
		}
		if free := leases[i+1].From.Sub(*a.Until); free < executor.HandBackFor || free > executor.HandBackFor+incompatibleFor+2*time.Second {
			t.Errorf("free for %s after lease %d", free, a.Generation)
		}
	}
}

// back is how soon a lone agent learns that what was silent answers, whether it holds
// the lease then or not.
const back = max(soon, executor.HandBackFor+incompatibleFor+2*time.Second)

// TestPendingOutlastsSilence: also where nothing is unknown, the lease is given back in
// between.
func TestPendingOutlastsSilence(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.hands("evict")
		server := b.mutes("evict", toRun)
		b.start()
		op := b.plane.submit("silence", time.Hour, drainPlan()...)
		b.told(t, op)
		time.Sleep(10 * time.Minute)
		if s := b.plane.state(op); s.Phase != operation.Running && s.Phase != operation.Dispatched || standing(s) == nil {
			t.Errorf("%s, blocker %v", s.Phase, standing(s))
		}
		server.away.Store(false)
		s := b.plane.ended(t, op, back+5*time.Second)
		if s.Phase != operation.Succeeded || s.Generation < 7 || s.Generation > 10 || standing(s) != nil {
			t.Errorf("ended %s, generation %d, blocker %v", s.Phase, s.Generation, standing(s))
		}
		paced(t, s.Assignments[1:])
		if got := b.unknowns(op); len(got) > 0 {
			t.Errorf("unknown: %v", got)
		}
		if diff := cmp.Diff([]string{"cordon/1", fmt.Sprintf("evict/%d", s.Generation)}, b.world.issued()); diff != "" {
			t.Error(diff)
		}
	})
}

// TestForeignOutlastsSilence: so does an operation whose resource an earlier one left
// unsettled, and what it never began is not unknown.
func TestForeignOutlastsSilence(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		server := b.mutes("reset", toRun)
		b.start()
		op := b.plane.add("foreign", time.Hour, step("preflight"), step("reset", effect, firm))
		b.plane.locked(func() { b.plane.ops[op].Spec.Unsettled = []string{"op_earlier"} })
		b.plane.ring(op, protocol.KindOperation)
		time.Sleep(10 * time.Minute)
		if s := b.plane.state(op); standing(s) == nil || len(b.world.issued()) > 0 {
			t.Errorf("generation %d, blocker %v, effects %v", s.Generation, standing(s), b.world.issued())
		}
		server.away.Store(false)
		s := b.plane.ended(t, op, back+5*time.Second)
		if s.Phase != operation.Succeeded || s.Generation < 6 || s.Generation > 9 || len(b.world.issued()) != 1 {
			t.Errorf("ended %s, generation %d, effects %v", s.Phase, s.Generation, b.world.issued())
		}
		paced(t, s.Assignments)
		if got := b.unknowns(op); len(got) > 0 {
			t.Errorf("unknown: %v", got)
		}
	})
}

// TestCancelInSilence: what a cancel calls for waits for an answer as well, unless
// there is nothing to be cleaned up. Waiting on does not turn into trying all the time.
func TestCancelInSilence(t *testing.T) {
	for _, tc := range []struct {
		name    string
		begin   func(b *bench) *silence
		waits   bool
		effects string // of the cleanup
	}{
		{"of what is unknown", func(b *bench) *silence { b.loses("cordon"); return b.mutes("cordon", found) }, true, "restore"},
		{"of what is half done", func(b *bench) *silence { b.hands("evict"); return b.mutes("evict", toRun) }, true, "restore"},
		{"of what changed nothing", func(b *bench) *silence {
			b.dies("preflight", func(context.Context, *executor.Task) executor.Outcome { return executor.Done("") })
			return b.mutes("preflight", toRun)
		}, false, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				server := tc.begin(b)
				b.start()
				op := b.plane.submit("cancel", time.Hour, drainPlan()...)
				b.told(t, op)
				b.plane.cancel(t, op)
				b.plane.ring(op, protocol.KindAttention)
				if tc.waits {
					server.takes.Store(int64(100 * time.Millisecond)) // connections are refused from now on
					before := server.tries.Load()
					time.Sleep(5 * time.Minute)
					if n := server.tries.Load() - before; n < 30 || n > 80 {
						t.Errorf("%d tries in 5 minutes", n)
					}
					if s := b.plane.state(op); s.Phase.Terminal() {
						t.Fatalf("ended %s before anything answered", s.Phase)
					}
					server.away.Store(false)
				}
				s := b.plane.ended(t, op, executor.HandBackFor+incompatibleFor+soon)
				if s.Phase != operation.Cancelled || len(s.Result.Residual) != 0 {
					t.Errorf("ended %s, residual %+v", s.Phase, s.Result.Residual)
				}
				effects := strings.Join(b.world.issued(), " ")
				if got := strings.Contains(effects, "restore"); got != (tc.effects != "") || strings.Contains(effects, "evict") {
					t.Errorf("effects %s", effects)
				}
			})
		})
	}
}

// TestStopInSilence: an agent that stops gives the lease back at once, and what is
// unknown stays so.
func TestStopInSilence(t *testing.T) {
	for _, tc := range []struct {
		name   string
		begin  func(b *bench) *silence
		cancel bool
		phase  operation.Phase
		end    operation.Phase
	}{
		{"unknown", func(b *bench) *silence { b.loses("cordon"); return b.mutes("cordon", found) }, false, operation.Reconciling, operation.Succeeded},
		{"half done", func(b *bench) *silence { b.hands("evict"); return b.mutes("evict", toRun) }, false, operation.Dispatched, operation.Succeeded},
		{"unknown and cancelled", func(b *bench) *silence { b.loses("cordon"); return b.mutes("cordon", found) }, true, operation.Reconciling, operation.Cancelled},
		{"half done and cancelled", func(b *bench) *silence { b.hands("evict"); return b.mutes("evict", toRun) }, true, operation.Reconciling, operation.Cancelled},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				server := tc.begin(b)
				b.start()
				op := b.plane.submit("stop", time.Hour, drainPlan()...)
				b.told(t, op)
				if tc.cancel {
					b.plane.cancel(t, op)
					b.plane.ring(op, protocol.KindAttention)
				}
				was := b.plane.state(op).Steps
				at := time.Now()
				if err := b.halt(); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(at); took > 9*time.Second { // the try under way
					t.Errorf("the stop took %s", took)
				}
				s := b.plane.state(op)
				if s.Phase != tc.phase || s.Lease != nil || s.Assignments[1].Ended != "handed_back" || s.Probes != 0 {
					t.Errorf("%s after %d probes, %+v", s.Phase, s.Probes, s.Assignments[1])
				}
				for i, x := range s.Steps {
					if x.Phase != was[i].Phase {
						t.Errorf("step %d was %s and is %s", i, was[i].Phase, x.Phase)
					}
				}
				server.away.Store(false)
				b.start()
				if s := b.plane.ended(t, op, time.Minute); s.Phase != tc.end {
					t.Errorf("ended %s", s.Phase)
				}
			})
		})
	}
}

// anew is the advice of a code where the operation cannot be retried any more.
func anew(text string) string {
	return strings.TrimSuffix(text, ", then retry") + ", then ask again with a later deadline"
}

// TestDeadlineInSilence: at the deadline the cause names the step and what did not
// answer, and what was unknown or begun before is left behind, once and with its reason.
func TestDeadlineInSilence(t *testing.T) {
	const left = ` and nothing is known to have undone it: not verified`
	for _, tc := range []struct {
		name     string
		begin    func(b *bench) *silence
		step     int
		residual []string
	}{
		{"unknown", func(b *bench) *silence { b.loses("cordon"); return b.mutes("cordon", found) }, 1, []string{"cordon: its outcome is unknown: the answer never came"}},
		{"half done", func(b *bench) *silence { b.hands("evict"); return b.mutes("evict", toRun) }, 2,
			[]string{`cordon: "" was carried out,` + left, `evict: "" was begun (2 of 3 are gone),` + left}},
		{"nothing done", func(b *bench) *silence {
			b.dies("preflight", func(context.Context, *executor.Task) executor.Outcome { return executor.Done("") })
			return b.mutes("preflight", toRun)
		}, 0, nil},
	} {
		// In a lease's first minute, and whenever one is about to be given back.
		for _, deadline := range []time.Duration{40 * time.Second, 80 * time.Second, 100 * time.Second, 115 * time.Second, 130 * time.Second, 190 * time.Second} {
			t.Run(tc.name+" "+deadline.String(), func(t *testing.T) {
				bubble(t, func(t *testing.T, b *bench) {
					server := tc.begin(b)
					b.start()
					op := b.plane.submit("deadline", deadline, drainPlan()...)
					s := b.plane.ended(t, op, deadline+3*time.Second)
					if s.Phase != operation.TimedOut || s.FinishedAt.Sub(s.Deadline) > 2*time.Second || server.tries.Load() < 2 {
						t.Fatalf("ended %s %s after the deadline, %d tries", s.Phase, s.FinishedAt.Sub(s.Deadline), server.tries.Load())
					}
					if s.Assignments[len(s.Assignments)-1].Ended != "reported" { // and not in a gap
						t.Errorf("the last lease %+v", s.Assignments[len(s.Assignments)-1])
					}
					c := s.Result.Cause
					if c.ErrorCode != codeDeadline || !strings.Contains(c.Detail, mute) || c.StepID != b.plane.ops[op].Spec.Steps[tc.step].ID {
						t.Errorf("cause %+v", c)
					}
					if _, act, text := executor.Action(codeSilent); s.Result.NextAction.Code != act || s.Result.NextAction.Text != anew(text) {
						t.Errorf("next %+v", s.Result.NextAction)
					}
					var left []string
					for _, x := range s.Result.Residual {
						left = append(left, x.Step+": "+x.Detail)
					}
					if diff := cmp.Diff(tc.residual, left); diff != "" {
						t.Error(diff)
					}
				})
			})
		}
	}
}

// TestDeniedAfterSilence: an API server that is just back denies what it allows a
// moment later. What it goes on to deny is believed, whether this lease has met any
// silence before or not.
func TestDeniedAfterSilence(t *testing.T) {
	for _, tc := range []struct {
		name   string
		silent bool
		denies time.Duration
		again  bool // it falls silent once more before it is believed
		waits  bool
	}{
		{"until it has read its roles", true, executor.DeniedFor - 2*time.Second, false, true},
		{"until it has, at the second start", true, 10 * time.Second, true, true},
		{"for good", true, time.Hour, false, false},
		{"without silence", false, executor.DeniedFor - 2*time.Second, false, true},
		{"for good, without silence", false, time.Hour, false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				var since, allows time.Time
				b.loses("cordon")
				server := b.mutes("cordon", func(*executor.Task) executor.Finding {
					now := time.Now()
					if since.IsZero() {
						since, allows = now, now.Add(tc.denies)
					}
					if tc.again && now.Sub(since) > 2*time.Second && now.Sub(since) < 7*time.Second {
						return executor.Unknown(codeSilent, mute)
					}
					if now.Before(allows) {
						return executor.Unknown(codeForbidden, "the agent's role lacks a right")
					}
					return executor.Found("it holds")
				})
				server.away.Store(tc.silent)
				b.start()
				op := b.plane.submit("denied", time.Hour, drainPlan()...)
				if tc.silent {
					b.told(t, op)
					server.away.Store(false)
				}
				if tc.waits {
					if s := b.plane.ended(t, op, soon+tc.denies+unansweredMost); s.Phase != operation.Succeeded || s.Generation != 2 {
						t.Errorf("ended %s, generation %d", s.Phase, s.Generation)
					}
					return
				}
				b.plane.wait(t, soon+executor.DeniedFor+5*time.Second, "believed", func() bool {
					return b.plane.ops[op].State.Steps[1].ErrorCode == codeForbidden && b.plane.ops[op].State.Lease == nil
				})
				s := b.plane.state(op)
				if s.Generation != 2 || s.Probes != 1 || s.Steps[1].Phase != operation.StepUnknown || standing(s) != nil {
					t.Errorf("generation %d, %d probes, cordon %s, blocker %v", s.Generation, s.Probes, s.Steps[1].Phase, standing(s))
				}
				took := time.Since(since)
				if took < executor.DeniedFor || took > executor.DeniedFor+2*time.Second {
					t.Errorf("believed after %s", took)
				}
			})
		})
	}
}

// TestOtherUnknownIsNotWaitedFor: only silence is: each lease asks once otherwise.
func TestOtherUnknownIsNotWaitedFor(t *testing.T) {
	for _, code := range []string{"no_answer", "in_progress", "api_error", "reset_unknown", ""} {
		t.Run(code, func(t *testing.T) {
			bubble(t, func(t *testing.T, b *bench) {
				var probes atomic.Int64
				b.loses("cordon")
				b.exec.probe["cordon"] = func(*executor.Task) executor.Finding {
					probes.Add(1)
					return executor.Unknown(code, "it cannot be told")
				}
				b.start()
				op := b.plane.submit("other", time.Hour, drainPlan()...)
				b.plane.wait(t, time.Minute, "the second lease ended", func() bool {
					s := b.plane.ops[op].State
					return s.Generation == 2 && s.Lease == nil
				})
				if s := b.plane.state(op); probes.Load() != 1 || s.Probes != 1 || s.Assignments[1].Ended != "ambiguous" || standing(s) != nil {
					t.Errorf("%d probes, the plane counts %d, %+v, blocker %v", probes.Load(), s.Probes, s.Assignments[1], standing(s))
				}
			})
		})
	}
}

// TestResolvedInSilence: between two leases a person may say what became of a step,
// and it is not asked for any more.
func TestResolvedInSilence(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.loses("cordon")
		server := b.mutes("cordon", found)
		b.start()
		op := b.plane.submit("resolved", time.Hour, drainPlan()...)
		b.told(t, op)
		b.plane.wait(t, holdUnknown+soon+5*time.Second, "the lease is given back", func() bool { return b.plane.ops[op].State.Lease == nil })
		b.plane.locked(func() {
			o := b.plane.ops[op]
			if err := b.plane.apply(o, operation.Resolve{StepID: o.Spec.Steps[1].ID, Outcome: operation.ResolveNotDone,
				By: operation.Actor{ID: "someone", Kind: "token"}, Evidence: "kubectl get node"}); err != nil {
				t.Error(err)
			}
		})
		tries := server.tries.Load()
		s := b.plane.ended(t, op, time.Minute)
		if s.Phase != operation.Succeeded || server.tries.Load() != tries {
			t.Errorf("ended %s after %d more tries", s.Phase, server.tries.Load()-tries)
		}
		if diff := cmp.Diff([]string{"cordon/1", "cordon/3", "evict/3"}, b.world.issued()); diff != "" {
			t.Error(diff)
		}
	})
}

// TestSilenceHasItsOwnTime: silence that comes again much later is told since then.
func TestSilenceHasItsOwnTime(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		tries, again := 0, time.Time{}
		b.exec.execute["preflight"] = func(ctx context.Context, _ *executor.Task) executor.Outcome {
			switch tries++; tries {
			case 1, 2:
				return unheard(ctx)
			case 3:
				return executor.Outcome{Class: operation.OutcomeWaiting, After: 10 * time.Minute, Detail: "it answers"}
			}
			if again.IsZero() {
				again = time.Now()
			}
			return unheard(ctx)
		}
		b.start()
		op := b.plane.submit("again", time.Hour, drainPlan()...)
		b.plane.wait(t, 11*time.Second, "silence", func() bool { return standing(b.plane.ops[op].State) != nil })
		b.plane.wait(t, 15*time.Second, "no silence", func() bool { return standing(b.plane.ops[op].State) == nil })
		b.plane.wait(t, 13*time.Minute, "silence again", func() bool { return standing(b.plane.ops[op].State) != nil })
		if x := standing(b.plane.state(op)); x.Since == nil || x.Since.Sub(again).Abs() > time.Second {
			t.Errorf("silent again at %s, told since %v", again.UTC(), x.Since)
		}
	})
}

// TestUnconvertedIsNamed: a probe of what nobody converts waits as one does that nothing
// answers, its lease given back in between, and the operation says what is missing. Once
// that is back the operation goes on.
func TestUnconvertedIsNamed(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		const why = "the API server cannot convert example.com/v1, Kind=Set: EOF"
		b.loses("cordon")
		server := b.mutes("cordon", found)
		unread := b.exec.probe["cordon"]
		b.exec.probe["cordon"] = func(t *executor.Task) executor.Finding {
			f := unread(t)
			if f.ErrorCode == codeSilent {
				f = executor.Unknown(codeUnconverted, why)
			}
			return f
		}
		b.start()
		op := b.plane.submit("unconverted", time.Hour, drainPlan()...)
		b.plane.wait(t, 3*time.Minute, "another lease names it", func() bool {
			s := b.plane.ops[op].State
			x := standing(s)
			return s.Generation > 2 && x != nil && x.Code == codeUnconverted && x.Rule == "conversion_webhook" && x.Detail == why
		})
		if s := b.plane.state(op); s.Steps[1].Phase != operation.StepUnknown || len(b.notes(op, codeUnconverted)) == 0 || len(b.notes(op, codeSilent)) > 0 {
			t.Errorf("the step is %s; notes %+v", s.Steps[1].Phase, b.notes(op, codeSilent))
		}
		server.away.Store(false)
		if s := b.plane.ended(t, op, 2*time.Minute); s.Phase != operation.Succeeded || standing(s) != nil {
			t.Errorf("ended %s, blocker %v", s.Phase, standing(s))
		}
	})
}
