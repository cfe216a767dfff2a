package react

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/shared/alert"
)

// An override, like a changed rule, says what becomes of alerts that are open; when
// it does not, they go on, as the shipped rules say.
func TestOverrideOnChange(t *testing.T) {
	t.Parallel()
	fired := "0s firing agent-clock-skewed" + "map[agent:nod_gpu] condition_holds"
	for _, tt := range []struct {
		name string
		o    alert.Override
		want []string
	}{
		{"says nothing", alert.Override{ResolveAfter: alert.Duration(2 * time.Hour)}, []string{fired, "2h1m0s resolved agent-clock-skewedmap[agent:nod_gpu] quiet"}},
		{"resolve", alert.Override{ResolveAfter: alert.Duration(2 * time.Hour), OnChange: alert.OnChangeResolve}, []string{fired, "1m0s resolved agent-clock-skewedmap[agent:nod_gpu] rule_changed"}},
		{"keep", alert.Override{ResolveAfter: alert.Duration(2 * time.Hour), OnChange: alert.OnChangeKeep}, []string{fired, "2h1m0s resolved agent-clock-skewedmap[agent:nod_gpu] quiet"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.tell("agent.clock_skewed", "gpu")
			b.follow()
			b.advance(time.Minute)
			got, err := b.service.OverrideRule(t.Context(), call, "agent-clock-skewed", 0, tt.o)
			if err != nil || got.Rule.OnChange == alert.OnChangeKeep != (tt.o.OnChange != alert.OnChangeResolve) || got.Override.OnChange != tt.o.OnChange {
				t.Fatalf("%+v, %v", got, err)
			}
			b.follow()
			b.advance(3 * time.Hour)
			b.follow()
			if d := cmp.Diff(tt.want, b.told()); d != "" {
				t.Errorf("told (-want +got):\n%s", d)
			}
		})
	}
	b := setup(t)
	_, err := b.service.OverrideRule(t.Context(), call, "device-degraded", 0, alert.Override{OnChange: "end"})
	var f alert.Faults
	if !errors.As(err, &f) || f[0].Pointer != "/on_change" {
		t.Errorf("another word: %v", err)
	}
}
