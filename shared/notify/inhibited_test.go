package notify

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/alert"
)

// What another alert begins to inhibit ends at an Alertmanager at once, and fires there
// again when that is over.
func TestAlertmanagerAndInhibitors(t *testing.T) {
	t.Parallel()
	p := setup(t)
	am := newFake(t, p)
	p.receiver(Spec{Name: "am", Kind: KindAlertmanager, URLs: []string{am.URL}})
	a := p.alert("hot")
	for _, step := range []struct{ typ, by, want string }{
		{alert.TypeFiring, "", "hot"}, {alert.TypeInhibited, "alr_1", ""}, {alert.TypeFiring, "", "hot"}, {alert.TypeInhibited, "alr_1", ""}, {alert.TypeResolved, "alr_1", ""},
	} {
		a.InhibitedBy = step.by
		p.tell(step.typ, a)
		p.run()
		want := []string{}
		if step.want != "" {
			want = append(want, step.want)
		}
		if d := cmp.Diff(want, am.firing(p.clock())); d != "" {
			t.Errorf("%s: %s", step.typ, d)
		}
		p.advance(10 * time.Second)
	}
}
