package operation

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// faults are the errors as "pointer code", sorted.
func faults(errs []FieldError) []string {
	out := []string{}
	for _, e := range errs {
		if e.Detail == "" {
			out = append(out, "no detail!")
		}
		out = append(out, e.Pointer+" "+e.Code)
	}
	slices.Sort(out)
	return out
}

func TestFields(t *testing.T) {
	t.Parallel()
	for in, want := range map[string][]string{
		``: {"/p/s required"}, `null`: {"/p/s required"}, `{}`: {"/p/s required"},
		`[]`: {"/p type", "/p/s required"}, `"x"`: {"/p type", "/p/s required"}, `{"s":`: {"/p type", "/p/s required"},
		`{"s":"ok"}`: {}, `{"s":null}`: {"/p/s required"}, `{"s":""}`: {"/p/s required"}, `{"s":1}`: {"/p/s type"}, `{"s":["x"]}`: {"/p/s type"},
		`{"s":"12345678"}`: {}, `{"s":"123456789"}`: {"/p/s max_length"}, `{"s":"ääää"}`: {}, `{"s":"ääääa"}`: {"/p/s max_length"},
		`{"s":"a\u0000"}`: {"/p/s characters"}, `{"s":"\ud800"}`: {"/p/s characters"}, `{"s":"a\nb\tc"}`: {},
		`{"s":"x","i":0}`: {}, `{"s":"x","i":-1}`: {"/p/i range"}, `{"s":"x","i":10}`: {}, `{"s":"x","i":11}`: {"/p/i range"},
		`{"s":"x","i":1.5}`: {"/p/i type"}, `{"s":"x","i":"1"}`: {"/p/i type"}, `{"s":"x","i":1e3}`: {"/p/i type"}, `{"s":"x","i":99999999999999999999}`: {"/p/i type"},
		`{"s":"x","o":0}`: {"/p/o range"}, `{"s":"x","o":null}`: {}, `{"s":"x","o":true}`: {"/p/o type"},
		`{"s":"x","b":"true"}`: {"/p/b type"}, `{"s":"x","b":0}`: {"/p/b type"}, `{"s":"x","e":"blue"}`: {}, `{"s":"x","e":"Blue"}`: {"/p/e enum"}, `{"s":"x","e":1}`: {"/p/e type"},
		`{"s":"x","S":"y"}`: {"/p/S unknown_field"}, `{"s":"x","a/b~c":1}`: {"/p/a~1b~0c unknown_field"}, `{"s":"x","z":1,"y":2}`: {"/p/y unknown_field", "/p/z unknown_field"},
		`{"s":"","i":99,"b":7,"e":"x","u":1}`: {"/p/b type", "/p/e enum", "/p/i range", "/p/s required", "/p/u unknown_field"},
	} {
		f := NewFields("/p", json.RawMessage(in))
		f.String("s", true, 8)
		f.Int("i", 0, 10, 3)
		f.OptInt("o", 1, 5)
		f.Bool("b", true)
		f.Enum("e", "red", "red", "blue")
		out := f.Done()
		if diff := cmp.Diff(want, faults(f.Errs)); diff != "" {
			t.Errorf("%s: %s", in, diff)
		}
		if !json.Valid(out) {
			t.Errorf("%s: payload %q", in, out)
		}
	}
	f := NewFields("", json.RawMessage(`{"s":"x"}`))
	f.String("s", true, 8)
	f.Int("i", 0, 10, 3)
	f.OptInt("o", 1, 5)
	f.Bool("b", true)
	if got := string(f.Done()); got != `{"b":true,"i":3,"s":"x"}` {
		t.Errorf("with defaults: %s", got)
	}
}

func TestRefusalsAreBounded(t *testing.T) {
	t.Parallel()
	body := map[string]int{}
	for i := range 5000 {
		body[fmt.Sprint(strings.Repeat("x", 1000), i)] = i
	}
	raw, _ := json.Marshal(body)
	f := NewFields("", raw)
	f.Done()
	r := Invalid(f.Errs...)
	b, _ := json.Marshal(r.Errors)
	if len(r.Errors) != 100 || len(b) > 40_000 || !strings.Contains(r.Detail, "5000 errors") {
		t.Errorf("%d errors in %d bytes: %s", len(r.Errors), len(b), r.Detail)
	}
}

// TestPayloads holds each type's payload to its bounds.
func TestPayloads(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 1025)
	kids := func(n int) string { return `{"children":[` + strings.TrimSuffix(strings.Repeat(`{},`, n), ",") + `]}` }
	for typ, cases := range map[string]map[string]string{ // payload -> faults
		"node.cordon":     {``: "", `{}`: "", `{"x":1}`: "/x unknown_field", `[]`: " type"},
		"node.uncordon":   {``: "", `{"take_over":true}`: "", `{"take_over":"yes"}`: "/take_over type", `{"force":true}`: "/force unknown_field"},
		"deployment.roll": {``: "", `{"x":1}`: "/x unknown_field", `{"undo":"on_failure"}`: "", `{"undo":true}`: "/undo type", `{"undo":"always"}`: "/undo enum"},
		"device.reset":    {``: "", `{"drain":true}`: "", `{"drain":1}`: "/drain type", `{"x":1}`: "/x unknown_field"},
		"node.drain": {
			``: "", `{"grace_period_seconds":-1}`: "", `{"grace_period_seconds":-2}`: "/grace_period_seconds range",
			`{"grace_period_seconds":86400}`: "", `{"grace_period_seconds":86401}`: "/grace_period_seconds range",
			`{"delete_emptydir_data":true,"force":true}`: "", `{"force":"x"}`: "/force type",
			`{"pod_selector":"app=web"}`: "", `{"pod_selector":"` + strings.Repeat("app=web,", 127) + "app=web" + `"}`: "", `{"pod_selector":"!!"}`: "/pod_selector format", `{"pod_selector":"` + long + `"}`: "/pod_selector max_length",
			`{"on_deadline":"stop"}`: "", `{"on_deadline":"force"}`: "", `{"on_deadline":"later"}`: "/on_deadline enum",
			`{"on_deadline":"force","force_window_seconds":1}`: "", `{"on_deadline":"force","force_window_seconds":0}`: "/force_window_seconds range",
			`{"on_deadline":"force","force_window_seconds":86400}`: "", `{"on_deadline":"force","force_window_seconds":86401}`: "/force_window_seconds range",
			`{"device":"GPU-8f3c"}`: "", `{"device":"GPU-8f3c","pod_selector":"app=web"}`: "/device conflict", `{"device":"` + long + `"}`: "/device max_length",
			`{"order":"none","await_volume_detach":true}`: "", `{"order":"name"}`: "/order enum", `{"await_volume_detach":1}`: "/await_volume_detach type",
			`{"force_window_seconds":30}`: "/force_window_seconds conflict",
			`{"on_cancel":"restore"}`:     "", `{"on_cancel":"undo"}`: "/on_cancel enum", `{"gracePeriodSeconds":1}`: "/gracePeriodSeconds unknown_field",
			`{"grace_period_seconds":"x","force":1,"y":1}`: "/force type,/grace_period_seconds type,/y unknown_field",
		},
		"component.upgrade": {
			`{}`: "/component required,/version required", `{"component":"operator","version":"v1.2.3"}`: "", `{"component":"operator","version":"1.2.3-rc.1+b5"}`: "",
			`{"component":"operator","version":"latest"}`: "/version format", `{"component":"operator","version":"01.2.3"}`: "/version format", `{"component":"operator","version":"1.2"}`: "/version format",
			`{"component":"` + long[:254] + `","version":"1.2.3"}`: "/component max_length", `{"component":1,"version":2}`: "/component type,/version type",
			`{"component":"o","version":"1.2.3","rollback":"never"}`: "", `{"component":"o","version":"1.2.3","rollback":"maybe"}`: "/rollback enum",
			`{"component":"o","version":"1.2.3","x":1}`: "/x unknown_field",
		},
		"plan": {
			``: "/children required", `{"children":[]}`: "/children required", `{"children":{}}`: "/children required", `{"children":[{}]}`: "",
			kids(1000): "", kids(1001): "/children max_items", `{"children":[{}],"max_in_flight":0}`: "/max_in_flight range", `{"children":[{}],"max_in_flight":1000}`: "",
			`{"children":[{}],"max_in_flight":1001}`: "/max_in_flight range", `{"children":[{}],"max_failures":-1}`: "/max_failures range", `{"children":[{}],"x":1}`: "/x unknown_field",
		},
	} {
		def, ok := Lookup(typ)
		if !ok {
			t.Fatalf("no type %s", typ)
		}
		for in, want := range cases {
			f := NewFields("", json.RawMessage(in))
			def.Payload(f)
			f.Done()
			if got := strings.Join(faults(f.Errs), ","); got != want {
				t.Errorf("%s %.80s: got %q, want %q", typ, in, got, want)
			}
		}
	}
}

func TestDrainForce(t *testing.T) {
	t.Parallel()
	def, _ := Lookup("node.drain")
	for in, want := range map[string]bool{`{}`: false, `{"force":true}`: true, `{"on_deadline":"force"}`: true, `{"on_deadline":"stop","delete_emptydir_data":true}`: false} {
		if def.Force(json.RawMessage(in)) != want {
			t.Errorf("%s: %v", in, !want)
		}
	}
	f := NewFields("", json.RawMessage(`{"grace_period_seconds":60,"on_deadline":"force"}`))
	def.Payload(f)
	if !strings.Contains(string(f.Done()), `"force_window_seconds":90`) {
		t.Error("the window is not the grace period and 30 s")
	}
}

// TestPlans compares each type's plan with its golden file.
func TestPlans(t *testing.T) {
	t.Parallel()
	targets := map[string]Target{
		KindNode:       {Kind: KindNode, ID: "nod_n", Name: "n", NodeID: "nod_n"},
		KindDevice:     {Kind: KindDevice, ID: "dev_d", Name: "GPU-d", NodeID: "nod_n", NodeName: "n"},
		KindDeployment: {Kind: KindDeployment, ID: "dep_d", Name: "default/web"},
		KindCluster:    {Kind: KindCluster, ID: "clu_c", Name: "alpha", Component: "cmp_o"},
	}
	payloads := map[string][]string{"node.drain": {`{}`, `{"on_cancel":"restore"}`, `{"device":"GPU-1"}`}, "deployment.roll": {`{}`, `{"undo":"on_failure"}`}, "device.reset": {`{}`, `{"drain":true}`}}
	var out strings.Builder
	for _, typ := range Types() {
		def, _ := Lookup(typ)
		ps := payloads[typ]
		if ps == nil {
			ps = []string{`{}`}
		}
		for _, p := range ps {
			locks, steps, resources := BuildPlan(def, "op_1", targets[def.Targets[0]], json.RawMessage(p))
			fmt.Fprintf(&out, "%s %s\n  resources %v\n", typ, p, resources)
			for _, l := range locks {
				fmt.Fprintf(&out, "  lock %s %s\n", l.Resource, l.Mode)
			}
			ids := map[string]bool{}
			for _, st := range steps {
				ids[st.ID] = true
				flags := ""
				for _, f := range []struct {
					on   bool
					name string
				}{{st.Required, "required"}, {st.Interruptible, "interruptible"}, {st.ReplaySafe, "replay-safe"}, {st.Effect, "effect"}, {st.Cleanup, "cleanup"}} {
					if f.on {
						flags += " " + f.name
					}
				}
				fmt.Fprintf(&out, "  step %s on %v needs %s/%d risk %s attempts %d:%s\n", st.Name, st.Resources, st.Capability, st.MinVersion, st.Risk, st.MaxAttempts, flags)
			}
			if len(ids) != len(steps) {
				t.Errorf("%s: two steps have one id", typ)
			}
			_, again, _ := BuildPlan(def, "op_1", targets[def.Targets[0]], json.RawMessage(p))
			if diff := cmp.Diff(steps, again); diff != "" {
				t.Errorf("%s: the same request gives another plan: %s", typ, diff)
			}
		}
	}
	golden(t, filepath.Join("testdata", "plans.txt"), out.String())
}

// golden compares with a file, or writes it when OPSPLANE_WRITE is 1.
func golden(t *testing.T, path, got string) {
	t.Helper()
	if os.Getenv("OPSPLANE_WRITE") == "1" {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s is not what the code says (OPSPLANE_WRITE=1 writes it): %s", path, diff)
	}
}

// TestTypes: every type has what a type needs.
func TestTypes(t *testing.T) {
	t.Parallel()
	for _, typ := range Types() {
		def, _ := Lookup(typ)
		d := DeadlinesOf(typ)
		if len(def.Targets) == 0 || def.Payload == nil || (def.Plan == nil) != def.PlaneLocal || d.Default <= 0 || d.Max < d.Default || Later(typ) {
			t.Errorf("%s: %+v, deadlines %+v", typ, def, d)
		}
	}
	if _, ok := Lookup("node.reboot"); ok || !Later("node.reboot") || Later("node.explode") {
		t.Error("node.reboot is for later")
	}
}
