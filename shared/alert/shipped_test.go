package alert

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/event"
)

// op is an event of an operation's coming into a phase.
func op(after time.Duration, id, typ, from, phase, target string, more ...any) event.Event {
	return fact(after, "operation."+phase, target, append([]any{"operation", id, "type", typ, "from", from, "phase", phase, "target", "id-of-" + target}, more...)...)
}

// TestShippedRules plays, for each rule that ships, a history that sets it off and
// one that does not, and sees it resolve. All rules judge all histories: what is
// not told is as much a part of the answer.
func TestShippedRules(t *testing.T) {
	t.Parallel()
	const m, h, day = time.Minute, time.Hour, 24 * time.Hour
	for _, c := range []struct {
		name  string
		until time.Duration
		evs   []event.Event
		want  []string
	}{
		{"operation-stuck", 3 * h, []event.Event{
			op(0, "op_a", "node.drain", "", "pending", "n1"),
			op(1*m, "op_a", "node.drain", "pending", "dispatched", "n1"),
			op(2*m, "op_a", "node.drain", "dispatched", "running", "n1"),
			fact(30*m, "operation.waiting", "n1", "operation", "op_a", "type", "node.drain", "reason", "agent"),
			op(70*m, "op_a", "node.drain", "running", "succeeded", "n1"),
		}, []string{"1h2m0s firing operation-stuck{op_a} condition_holds", "1h10m0s resolved operation-stuck{op_a} condition_ended"}},
		{"operation-stuck does not fire", 3 * h, []event.Event{
			op(0, "op_a", "node.drain", "", "pending", "n1"),
			op(59*m, "op_a", "node.drain", "pending", "dispatched", "n1"),
			op(118*m, "op_a", "node.drain", "dispatched", "cancelled", "n1"),
		}, []string{}},
		{"operation-reconciling", h, []event.Event{
			op(0, "op_a", "device.reset", "running", "reconciling", "gpu", "kind", "device"),
			op(20*m, "op_a", "device.reset", "reconciling", "running", "gpu", "kind", "device"),
			op(22*m, "op_a", "device.reset", "running", "reconciling", "gpu", "kind", "device"),
			op(31*m, "op_a", "device.reset", "reconciling", "failed", "gpu", "kind", "device"),
		}, []string{"10m0s firing operation-reconciling{op_a} condition_holds", "20m0s resolved operation-reconciling{op_a} condition_ended"}},
		{"operation-timed-out", 30 * h, []event.Event{
			op(0, "op_a", "node.drain", "running", "timed_out", "n1"),
			op(0, "op_b", "node.drain", "running", "timed_out", "n2"),
			op(h, "op_c", "node.cordon", "running", "succeeded", "n1"),
			op(2*h, "op_d", "node.drain", "running", "succeeded", "n1"),
		}, []string{
			"0s firing operation-timed-out{n1} condition_holds", "0s firing operation-timed-out{n2} condition_holds",
			"2h0m0s resolved operation-timed-out{n1} condition_ended", "24h0m0s resolved operation-timed-out{n2} quiet",
		}},
		{"retry-storm", 2 * h, []event.Event{
			op(0, "op_a", "node.drain", "failed", "pending", "n1"),
			op(1*m, "op_a", "node.drain", "pending", "dispatched", "n1"), // a first dispatch
			op(5*m, "op_a", "node.drain", "failed", "pending", "n1"),
			op(10*m, "op_a", "node.drain", "running", "dispatched", "n1"),
			op(15*m, "op_b", "node.drain", "reconciling", "dispatched", "n1"),
			op(16*m, "op_c", "node.drain", "", "pending", "n1"), // an operation of its own
			op(20*m, "op_b", "node.drain", "failed", "pending", "n1"),
			op(21*m, "op_b", "node.drain", "pending", "cancelled", "n1"), op(21*m, "op_c", "node.drain", "pending", "cancelled", "n1"),
			op(21*m, "op_a", "node.drain", "dispatched", "cancelled", "n1"),
		}, []string{"20m0s firing retry-storm{n1} condition_holds", "50m0s resolved retry-storm{n1} quiet"}},
		{"retry-storm does not fire", 2 * h, []event.Event{
			op(0, "op_a", "node.drain", "failed", "pending", "n1"), op(10*m, "op_a", "node.drain", "failed", "pending", "n1"),
			op(20*m, "op_a", "node.drain", "failed", "pending", "n1"), op(25*m, "op_a", "node.drain", "failed", "pending", "n2"),
			op(29*m, "op_a", "node.drain", "failed", "pending", "n1"), op(31*m, "op_a", "node.drain", "failed", "pending", "n1"),
			op(31*m, "op_a", "node.drain", "pending", "cancelled", "n1"), op(31*m, "op_a", "node.drain", "pending", "cancelled", "n2"),
		}, []string{}},
		{"node-drained-again", 30 * day, []event.Event{
			op(0, "op_a", "node.drain", "running", "succeeded", "n1"), op(day, "op_b", "node.cordon", "running", "succeeded", "n1"),
			op(2*day, "op_c", "node.drain", "running", "succeeded", "n1"), op(3*day, "op_d", "node.drain", "running", "succeeded", "n2"),
			op(6*day, "op_e", "node.drain", "running", "succeeded", "n1"), op(10*day, "op_f", "node.drain", "running", "succeeded", "n2"),
			op(11*day, "op_g", "node.drain", "running", "succeeded", "n2"),
		}, []string{"144h0m0s firing node-drained-again{id-of-n1} condition_holds", "312h0m0s resolved node-drained-again{id-of-n1} quiet"}},
		{"device-reset-again", 30 * day, []event.Event{
			op(0, "op_a", "device.reset", "running", "succeeded", "gpu", "kind", "device"),
			op(1*h, "op_b", "device.reset", "running", "failed", "gpu", "kind", "device"),
			op(2*h, "op_c", "device.reset", "running", "succeeded", "gpu", "kind", "device"),
			op(3*h, "op_d", "device.reset", "running", "succeeded", "gpu", "kind", "device"),
		}, []string{"3h0m0s firing device-reset-again{id-of-gpu} condition_holds", "171h0m0s resolved device-reset-again{id-of-gpu} quiet"}},
		{"device-degraded", 3 * h, []event.Event{
			fact(0, "device.degraded", "gpu"), fact(m, "device.degraded", "gpu"), fact(2*m, "device.recovered", "gpu2"), fact(10*m, "device.recovered", "gpu"),
		}, []string{
			"0s pending device-degraded{id-of-gpu} condition_holds", "10s firing device-degraded{id-of-gpu} condition_holds",
			"10m0s resolved device-degraded{id-of-gpu} condition_ended",
		}},
		{"device-degraded flaps", 3 * h, []event.Event{
			fact(0, "device.degraded", "gpu"), fact(1*m, "device.recovered", "gpu"), fact(2*m, "device.degraded", "gpu"), fact(3*m, "device.recovered", "gpu"),
			fact(4*m, "device.degraded", "gpu"), fact(5*m, "device.recovered", "gpu"), fact(6*m, "device.degraded", "gpu"), fact(7*m, "device.recovered", "gpu"),
		}, []string{
			"0s pending device-degraded{id-of-gpu} condition_holds", "10s firing device-degraded{id-of-gpu} condition_holds", "1m0s resolved device-degraded{id-of-gpu} condition_ended",
			"2m0s pending device-degraded{id-of-gpu} condition_holds", "2m10s firing device-degraded{id-of-gpu} condition_holds", "3m0s resolved device-degraded{id-of-gpu} condition_ended",
			"4m0s pending device-degraded{id-of-gpu} condition_holds", "4m10s firing device-degraded{id-of-gpu} condition_holds", "5m0s flapping device-degraded{id-of-gpu} flapping",
			"1h7m0s resolved device-degraded{id-of-gpu} steady",
		}},
		{"device-degraded, and a fatal XID with it", 3 * h, []event.Event{
			fact(0, "device.degraded", "gpu"), fact(3*time.Second, "device.xid", "gpu", "xid", 79, "class", "hardware"), fact(10*m, "device.recovered", "gpu"),
		}, []string{
			"0s pending device-degraded{id-of-gpu} condition_holds", "3s firing fatal-xid{id-of-gpu} condition_holds",
			"10s firing device-degraded{id-of-gpu} condition_holds*", "10m0s resolved fatal-xid{id-of-gpu} condition_ended",
			"10m0s resolved device-degraded{id-of-gpu} condition_ended*",
		}},
		{"device-degraded, and a fatal XID long after", 3 * h, []event.Event{
			fact(0, "device.degraded", "gpu"), fact(m, "device.xid", "gpu", "xid", 79, "class", "hardware"),
			op(5*m, "op_a", "device.reset", "running", "succeeded", "gpu", "kind", "device"), fact(10*m, "device.recovered", "gpu"),
		}, []string{
			"0s pending device-degraded{id-of-gpu} condition_holds", "10s firing device-degraded{id-of-gpu} condition_holds", "1m0s firing fatal-xid{id-of-gpu} condition_holds",
			"1m0s inhibited device-degraded{id-of-gpu} inhibited*", "5m0s resolved fatal-xid{id-of-gpu} condition_ended",
			"5m0s firing device-degraded{id-of-gpu} inhibition_over", "10m0s resolved device-degraded{id-of-gpu} condition_ended",
		}},
		{"fatal-xid, causes and not victims", 30 * h, []event.Event{
			fact(0, "device.xid", "gpu", "xid", 13, "class", "application"),
			fact(0, "device.xid", "gpu", "xid", 45, "class", "victim", "victim_of", 79),
			fact(0, "device.xid", "gpu", "xid", 48, "class", "hardware", "victim_of", 79),
			fact(m, "device.xid", "gpu", "xid", 79, "class", "hardware", "count", 3),
			fact(2*m, "device.xid", "gpu2", "xid", 119, "class", "driver"),
			op(3*m, "op_a", "device.reset", "running", "succeeded", "gpu", "kind", "device"),
		}, []string{
			"1m0s firing fatal-xid{id-of-gpu} condition_holds", "2m0s firing fatal-xid{id-of-gpu2} condition_holds",
			"3m0s resolved fatal-xid{id-of-gpu} condition_ended", "24h2m0s resolved fatal-xid{id-of-gpu2} quiet",
		}},
		{"deployment-oom-loop", 2 * h, []event.Event{
			fact(0, "deployment.oom", "web", "count", 1), fact(5*m, "deployment.oom", "web"), fact(5*m, "deployment.oom", "db"), fact(14*m, "deployment.oom", "web"),
		}, []string{"14m0s firing deployment-oom-loop{id-of-web} condition_holds", "29m0s resolved deployment-oom-loop{id-of-web} quiet"}},
		{"deployment-oom-loop does not fire", 2 * h, []event.Event{
			fact(0, "deployment.oom", "web"), fact(8*m, "deployment.oom", "web"), fact(15*m, "deployment.oom", "web"), fact(25*m, "deployment.oom", "web"),
		}, []string{}},
		{"node-not-ready-in-operation, the operation first", 2 * h, []event.Event{
			op(0, "op_a", "node.drain", "dispatched", "running", "n1"),
			fact(m, "node.not_ready", "n1"), fact(m, "node.not_ready", "n2"),
			fact(10*m, "node.ready", "n1"),
			op(11*m, "op_a", "node.drain", "running", "succeeded", "n1"),
		}, []string{
			"1m0s pending node-not-ready-in-operation{n1} condition_holds", "2m0s firing node-not-ready-in-operation{n1} condition_holds",
			"10m0s resolved node-not-ready-in-operation{n1} condition_ended",
		}},
		{"node-not-ready-in-operation, of a device, the node first", 2 * h, []event.Event{
			fact(0, "node.not_ready", "n1"),
			op(5*m, "op_a", "device.reset", "dispatched", "running", "gpu", "kind", "device", "node", "n1"),
			op(9*m, "op_a", "device.reset", "running", "failed", "gpu", "kind", "device", "node", "n1"),
		}, []string{
			"5m0s pending node-not-ready-in-operation{n1} condition_holds", "6m0s firing node-not-ready-in-operation{n1} condition_holds",
			"9m0s resolved node-not-ready-in-operation{n1} condition_ended",
		}},
		{"agent-silent", 2 * h, []event.Event{
			fact(0, "agent.silent", "a1"), fact(30*time.Second, "agent.online", "a1"),
			fact(10*m, "agent.silent", "a1"), fact(20*m, "agent.online", "a1"), fact(30*m, "agent.silent", "a2"), fact(60*m, "agent.removed", "a2"),
			fact(70*m, "agent.stopping", "a1"), fact(71*m, "agent.restarted", "a1"), fact(80*m, "agent.silent", "a1"), fact(85*m, "agent.stopping", "a1"),
		}, []string{
			"0s pending agent-silent{id-of-a1} condition_holds", "30s resolved agent-silent{id-of-a1} withdrawn",
			"10m0s pending agent-silent{id-of-a1} condition_holds", "11m0s firing agent-silent{id-of-a1} condition_holds",
			"20m0s resolved agent-silent{id-of-a1} condition_ended",
			"30m0s pending agent-silent{id-of-a2} condition_holds", "31m0s firing agent-silent{id-of-a2} condition_holds",
			"1h0m0s resolved agent-silent{id-of-a2} condition_ended",
			"1h20m0s pending agent-silent{id-of-a1} condition_holds", "1h21m0s firing agent-silent{id-of-a1} condition_holds",
			"1h25m0s resolved agent-silent{id-of-a1} condition_ended",
		}},
		{"agent-clock-skewed", 2 * h, []event.Event{
			fact(0, "agent.clock_skewed", "a1", "skew_ms", 3600000), fact(m, "agent.clock_ok", "a1"),
		}, []string{"0s firing agent-clock-skewed{id-of-a1} condition_holds", "1m0s resolved agent-clock-skewed{id-of-a1} condition_ended"}},
		{"dead-letters", 30 * h, []event.Event{
			fact(0, "queue.dead_letter", "q"), fact(h, "queue.dead_letter", "q"),
		}, []string{"0s firing dead-letters{q} condition_holds", "25h0m0s resolved dead-letters{q} quiet"}},
		{"stream-gap", 2 * h, []event.Event{
			fact(0, "stream.gap", "a1", "from", 4, "through", 9),
		}, []string{"0s firing stream-gap{id-of-a1} condition_holds", "1h0m0s resolved stream-gap{id-of-a1} quiet"}},
		{"gpus-unallocatable", 3 * h, []event.Event{
			fact(0, "node.gpus_unallocatable", "n1", "missing", 2), fact(m, "node.gpus_unallocatable", "n1", "missing", 3), fact(m, "node.gpus_unallocatable", "n2", "missing", 8),
			fact(2*m, "device.degraded", "gpu"), fact(3*m, "device.recovered", "gpu"), fact(10*m, "node.gpus_allocatable", "n1"), fact(20*m, "node.left", "n2"),
		}, []string{
			"0s firing gpus-unallocatable{id-of-n1} condition_holds", "1m0s firing gpus-unallocatable{id-of-n2} condition_holds",
			"2m0s pending device-degraded{id-of-gpu} condition_holds", "2m10s firing device-degraded{id-of-gpu} condition_holds", "3m0s resolved device-degraded{id-of-gpu} condition_ended",
			"10m0s resolved gpus-unallocatable{id-of-n1} condition_ended", "20m0s resolved gpus-unallocatable{id-of-n2} condition_ended",
		}},
		{"stream-unreadable", 30 * h, []event.Event{
			fact(0, "stream.unreadable", "s", "from", 4, "through", 9), fact(h, "stream.unreadable", "s", "from", 12, "through", 12),
		}, []string{"0s firing stream-unreadable{id-of-s} condition_holds", "25h0m0s resolved stream-unreadable{id-of-s} quiet"}},
		{"plane-clock-ahead", 3 * h, []event.Event{
			fact(0, "stream.clock_set_back", "s", "ahead_ms", 7200000),
		}, []string{"0s firing plane-clock-ahead{id-of-s} condition_holds", "1h0m0s resolved plane-clock-ahead{id-of-s} quiet"}},
		{"receiver-failing", 60 * h, []event.Event{
			fact(0, "notify.failed", "pager", "delivery", "dlv_1"), fact(20*h, "notify.disabled", "pager", "reason", "410"), fact(21*h, "notify.failed", "chat"),
			fact(30*h, "notify.failed", "pager", "rule", "receiver-failing"), // it hears of this rule's own alerts no better
		}, []string{
			"0s firing receiver-failing{pager} condition_holds", "21h0m0s firing receiver-failing{chat} condition_holds",
			"44h0m0s resolved receiver-failing{pager} quiet", "45h0m0s resolved receiver-failing{chat} quiet",
		}},
		{"receiver-failing, and back", 60 * h, []event.Event{
			fact(0, "notify.failing", "pager", "since", "s", "error", "answered 500"), fact(24*h-m, "notify.failed", "pager", "delivery", "dlv_1"),
			fact(30*h, "notify.recovered", "pager", "since", "s", "failed_ms", 108000000),
		}, []string{
			"0s firing receiver-failing{pager} condition_holds", "30h0m0s resolved receiver-failing{pager} condition_ended",
		}},
		{"nothing is wrong", 24 * h, []event.Event{
			op(0, "op_a", "node.drain", "", "pending", "n1"), op(0, "op_a", "node.drain", "pending", "dispatched", "n1"),
			op(0, "op_a", "node.drain", "dispatched", "running", "n1"), op(9*m, "op_a", "node.drain", "running", "succeeded", "n1"),
			fact(10*m, "node.not_ready", "n1"), fact(11*m, "node.ready", "n1"), fact(12*m, "agent.online", "a1"),
		}, []string{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if d := cmp.Diff(c.want, play(t, allShipped(t), c.until, c.evs...)); d != "" {
				t.Errorf("told (-want +got):\n%s", d)
			}
		})
	}
}

// TestShippedRulesTakeWhatAgentsTell: what an agent leaves out of a detail, or tells
// as null, as nothing or as another type, keeps no shipped rule from firing that does
// not need it.
func TestShippedRulesTakeWhatAgentsTell(t *testing.T) {
	t.Parallel()
	rules := allShipped(t)
	fires := func(told []string, rule string) bool {
		return slices.ContainsFunc(told, func(l string) bool { return strings.Contains(l, " firing "+rule+"{") })
	}
	odd := []any{nil, "", "x", 0, 7.5, true, []any{}, map[string]any{}}
	for _, c := range []struct {
		rule, typ string
		fields    []string // of the type's detail, which the rule does not need
		detail    []any
		times     int
	}{
		{"agent-clock-skewed", "agent.clock_skewed", []string{"skew_ms", "boot"}, nil, 1},
		{"agent-silent", "agent.silent", []string{"last_seen", "boot", "silent_for"}, nil, 1},
		{"dead-letters", "queue.dead_letter", []string{"queue", "reason"}, nil, 1},
		{"deployment-oom-loop", "deployment.oom", []string{"count", "pod", "container", "restarts", "node", "exit_code"}, nil, 3},
		{"device-degraded", "device.degraded", []string{"node", "node_uid", "index", "health", "detail"}, nil, 1},
		{"fatal-xid", "device.xid", []string{"node", "node_uid", "xid", "text", "count", "first", "last", "index", "cause"}, []any{"class", "hardware"}, 1},
		{"receiver-failing", "notify.failed", []string{"delivery", "event", "alert", "rule", "status", "error", "tries"}, nil, 1},
		{"receiver-failing", "notify.disabled", []string{"reason"}, nil, 1},
		{"receiver-failing", "notify.failing", []string{"since", "error"}, nil, 1},
		{"stream-gap", "stream.gap", []string{"from", "through", "refused", "boot"}, nil, 1},
		{"stream-unreadable", "stream.unreadable", []string{"from", "through"}, nil, 1},
		{"plane-clock-ahead", "stream.clock_set_back", []string{"from", "to", "ahead_ms"}, nil, 1},
		{"device-reset-again", "operation.succeeded", []string{"from", "reason", "detail", "generation", "resources", "node", "parent", "cause"},
			[]any{"operation", "op_a", "type", "device.reset", "phase", "succeeded"}, 3},
		{"node-drained-again", "operation.succeeded", []string{"from", "reason", "detail", "generation", "resources", "node", "parent", "cause"},
			[]any{"operation", "op_a", "type", "node.drain", "phase", "succeeded"}, 3},
		{"operation-timed-out", "operation.timed_out", []string{"from", "reason", "generation", "resources", "node", "parent", "phase"}, []any{"operation", "op_a", "type", "node.drain"}, 1},
		{"operation-reconciling", "operation.reconciling", []string{"from", "reason", "generation", "resources", "node", "parent"},
			[]any{"operation", "op_a", "type", "node.drain", "phase", "reconciling"}, 1},
		{"operation-stuck", "operation.running", []string{"from", "reason", "generation", "resources", "node", "parent"},
			[]any{"operation", "op_a", "type", "node.drain", "phase", "running"}, 1},
		{"retry-storm", "operation.pending", []string{"reason", "generation", "resources", "node", "parent"},
			[]any{"operation", "op_a", "type", "node.drain", "phase", "pending", "from", "failed"}, 5},
	} {
		for _, v := range odd {
			var evs []event.Event
			for i := range c.times {
				detail := slices.Clone(c.detail)
				for _, f := range c.fields {
					detail = append(detail, f, v)
				}
				evs = append(evs, fact(time.Duration(i)*time.Minute, c.typ, "a", detail...))
			}
			if got := play(t, rules, 65*time.Minute, evs...); !fires(got, c.rule) {
				t.Errorf("%s does not fire where the rest of the detail is %v: %v", c.rule, v, got)
			}
		}
		for _, raw := range []string{"null", "", "[]", "7", "{"} { // there is no detail
			e := fact(0, c.typ, "a")
			e.Detail = []byte(raw)
			if got := play(t, rules, 65*time.Minute, e); fires(got, c.rule) != (c.times == 1 && c.rule != "fatal-xid") {
				t.Errorf("%s of a detail %s: %v", c.rule, raw, got)
			}
		}
	}
}

// TestVictims: only a number of an XID, in whichever spelling, makes another its cause.
func TestVictims(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		victimOf any
		fires    bool
	}{
		{nil, true}, {"", true}, {0, true}, {0.0, true}, {"0", true}, {"absent", true},
		{79, false}, {79.0, false}, {"79", false},
	} {
		detail := []any{"xid", 48, "class", "hardware", "victim_of", c.victimOf}
		if c.victimOf == "absent" {
			detail = detail[:4]
		}
		if got := play(t, allShipped(t), 0, fact(0, "device.xid", "gpu", detail...)); len(got) > 0 != c.fires {
			t.Errorf("victim_of %v (%T): %v", c.victimOf, c.victimOf, got)
		}
	}
}

func allShipped(t testing.TB) []*Compiled {
	var rules []*Compiled
	for _, s := range ShippedRules() {
		x, err := Compile(s.Rule, s.ID, 1)
		if err != nil {
			t.Fatal(err)
		}
		rules = append(rules, x)
	}
	return rules
}

// TestShippedRulesAreWhole: each has what a person needs at three in the morning.
func TestShippedRulesAreWhole(t *testing.T) {
	t.Parallel()
	for _, s := range ShippedRules() {
		r := s.Rule
		if r.Description == "" || r.Summary == "" || r.Severity == "" || r.Runbook != "/docs/runbooks/"+r.Name+".md" {
			t.Errorf("rule %s lacks a description, summary, severity, or its runbook: %q", r.Name, r.Runbook)
		}
		for _, on := range r.On {
			if _, ok := event.Lookup(on); !ok {
				t.Errorf("rule %s looks at %s, which the catalogue does not have", r.Name, on)
			}
		}
	}
}
