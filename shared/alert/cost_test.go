package alert

import (
	"fmt"
	"testing"
)

// What rules cost is counted also where they are so cheap that it is sampled: as
// much as a backtest says that it is, for that counts each evaluation.
func TestCheapRulesCost(t *testing.T) {
	t.Parallel()
	r := rule(t, "name: m\non: [x.a]\nwhen: event.subject.name.matches('^n[0-9]+$')\ngroup_by: {g: event.subject.name}\n")
	if r.Estimate() >= freeCost {
		t.Fatalf("it is estimated at %d: it is metered anyway", r.Estimate())
	}
	metered, err := CompileMetered(r.Rule, r.ID, 1)
	if err != nil {
		t.Fatal(err)
	}
	cost := func(c *Compiled) int64 {
		s := NewStream(testStream, NewSet([]*Compiled{c}, nil), Position{}, nil)
		for i := range 3*sampleEvery + 1 {
			e := fact(0, "x.a", fmt.Sprint("n", 10+i%90))
			e.Sequence = int64(i + 1)
			s.Judge(NewVars(&e, nil), never)
		}
		if s.Meter.Cost < s.Meter.Evaluated {
			t.Errorf("%d expressions cost %d", s.Meter.Evaluated, s.Meter.Cost)
		}
		return s.Meter.Cost
	}
	if exact, sampled := cost(metered), cost(r); exact != sampled {
		t.Errorf("by samples %d, in truth %d", sampled, exact)
	}
}
