//go:build awstest

package inproc

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/opsplane/opsplane/agent/executor/sim"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/verify"
)

// TestFaults drives load while everything goes wrong that can on AWS, lets it
// come to rest, and checks what was acknowledged: one operation for each
// request, all at an end by the bound, no side effect twice, no lock left, each
// event in its stream once.
func TestFaults(t *testing.T) {
	for _, tt := range []struct {
		name   string
		faults *Faults
	}{
		{"stream batches again and reordered", &Faults{Redeliver: 0.5, Reorder: true}},
		{"messages lost, repeated and late", &Faults{Lose: 0.2, Repeat: 0.2, Late: 0.3}},
		{"functions killed in mid-batch", &Faults{Kill: 0.4}},
		{"throttled and answers lost", &Faults{Throttle: 0.08, LoseAnswer: 0.05}},
		{"all at once", &Faults{Redeliver: 0.2, Reorder: true, Lose: 0.1, Repeat: 0.1, Late: 0.1, Kill: 0.1, Throttle: 0.04, LoseAnswer: 0.03}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := tt.faults
			d := Start(t, Options{Scenario: "testdata/cost.yaml", Cluster: "cost", Tick: 5 * time.Second, Faults: f})
			nodes, deployments := d.targets(t, "/v1/nodes", 10), d.targets(t, "/v1/deployments", 100)
			asked := d.drive(t, nodes, deployments, time.Now().Add(20*time.Second))
			f.Stop()
			d.rest(t)
			d.holds(t, asked)
			t.Logf("%d requests, %v, %d batches came again", len(asked), f.Counts(), d.Redelivered.Load())
		})
	}
}

// asked is one request, and the operation that it was told of.
type asked struct{ key, id string }

// drive asks for operations until the time, each under a key of its own and
// again while no answer comes; it cancels some.
func (d *Deployment) drive(t testing.TB, nodes, deployments []object, until time.Time) []asked {
	t.Helper()
	var mu sync.Mutex
	var out []asked
	var wg sync.WaitGroup
	for client := range 4 {
		wg.Go(func() {
			for i := 0; time.Now().Before(until); i++ {
				key := fmt.Sprintf("key-%d-%d", client, i)
				body := map[string]any{"reason": key, "deadline": time.Now().Add(time.Duration(10+rand.IntN(20)) * time.Second).UTC().Format(time.RFC3339Nano)}
				switch rand.IntN(4) {
				case 0:
					body["type"], body["target"] = "node.cordon", nodes[rand.IntN(len(nodes))].ID
				case 1:
					body["type"], body["target"], body["payload"] = "node.uncordon", nodes[rand.IntN(len(nodes))].ID, map[string]any{"take_over": true}
				default:
					body["type"], body["target"] = "deployment.roll", deployments[rand.IntN(100)].ID
				}
				id, status, tries := d.insist(t, key, body)
				switch {
				case status == http.StatusAccepted, status == http.StatusOK:
				case status == http.StatusConflict: // another holds the target
					continue
				case status == http.StatusUnprocessableEntity && tries > 1: // its deadline has passed meanwhile
					continue
				default:
					t.Errorf("request %s was answered %d", key, status)
				}
				mu.Lock()
				out = append(out, asked{key, id})
				mu.Unlock()
				if rand.IntN(6) == 0 {
					d.try(t, http.MethodDelete, "/v1/operations/"+id, "", nil)
				}
			}
		})
	}
	wg.Wait()
	return out
}

// insist asks until there is an answer that is one.
func (d *Deployment) insist(t testing.TB, key string, body map[string]any) (id string, status, tries int) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		var answer []byte
		tries++
		if status, answer = d.try(t, http.MethodPost, "/v1/operations", key, body); status != 0 && status < http.StatusInternalServerError && status != http.StatusTooManyRequests {
			var op struct {
				ID string `json:"id"`
			}
			if err := json.Unmarshal(answer, &op); err != nil {
				t.Errorf("%v in %s", err, answer)
			}
			return op.ID, status, tries
		}
	}
	return "", status, tries
}

// try makes one call.
func (d *Deployment) try(t testing.TB, method, path, key string, body any) (status int, answer []byte) {
	t.Helper()
	var rd io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			t.Error(err)
			return 0, nil
		}
		rd = bytes.NewReader(b)
	}
	r, err := http.NewRequestWithContext(t.Context(), method, d.URL+path, rd)
	if err != nil {
		t.Error(err)
		return 0, nil
	}
	r.Header.Set("Authorization", "Bearer "+d.Token)
	r.Header.Set("Content-Type", "application/json")
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	resp, err := d.client.Do(r)
	if err != nil {
		return 0, nil
	}
	answer, err = io.ReadAll(resp.Body)
	if cerr := resp.Body.Close(); err != nil || cerr != nil {
		return 0, nil
	}
	return resp.StatusCode, answer
}

// rest waits until no operation is live, at most until the last deadline and the
// bound are over.
func (d *Deployment) rest(t testing.TB) {
	t.Helper()
	bound := 30*time.Second + operation.AWS.Lease + operation.AWS.CallDeadline + 15*time.Second
	for end := time.Now().Add(bound); ; time.Sleep(500 * time.Millisecond) {
		var page struct {
			Items []struct {
				ID    string `json:"id"`
				Phase string `json:"phase"`
			} `json:"items"`
		}
		code, b := d.try(t, http.MethodGet, "/v1/operations?active=true&limit=200", "", nil)
		if code == http.StatusOK {
			if err := json.Unmarshal(b, &page); err != nil {
				t.Fatal(err)
			}
			if len(page.Items) == 0 {
				return
			}
		}
		if time.Now().After(end) {
			t.Fatalf("after %s %d operations are live: %v", bound, len(page.Items), page.Items)
		}
	}
}

// holds checks what must hold when all has come to rest.
func (d *Deployment) holds(t testing.TB, all []asked) {
	t.Helper()
	if len(all) == 0 {
		t.Fatal("nothing was asked")
	}
	byReason := map[string][]string{}
	for cursor := ""; ; {
		var page struct {
			Items []struct {
				ID     string `json:"id"`
				Reason string `json:"reason"`
			} `json:"items"`
			Next *string `json:"next_cursor"`
		}
		if code := d.Call(t, http.MethodGet, "/v1/operations?limit=200&cursor="+cursor, nil, &page); code != http.StatusOK {
			t.Fatalf("list answered %d", code)
		}
		for _, it := range page.Items {
			byReason[it.Reason] = append(byReason[it.Reason], it.ID)
		}
		if page.Next == nil {
			break
		}
		cursor = *page.Next
	}
	for _, a := range all {
		if ids := byReason[a.key]; !slices.Equal(ids, []string{a.id}) {
			t.Errorf("request %s was accepted as %s; there are %v", a.key, a.id, ids)
		}
	}
	// The streams may be a moment behind what ended; the sweep's tick mends them.
	var report verify.Report
	for end := time.Now().Add(time.Minute); ; time.Sleep(2 * time.Second) {
		var err error
		if report, err = verify.Run(t.Context(), d.Watch, time.Now(), operation.AWS.Lease+operation.AWS.CallDeadline); err != nil {
			t.Fatal(err)
		}
		if len(report.Problems) == 0 || time.Now().After(end) {
			break
		}
	}
	for _, p := range report.Problems {
		t.Error(p)
	}
	effects, err := sim.ReadEffects(d.SimState)
	if err != nil {
		t.Fatal(err)
	}
	if err := sim.CheckOnce(effects); err != nil {
		t.Error(err)
	}
	if len(effects) == 0 {
		t.Error("nothing was done in the cluster")
	}
}
