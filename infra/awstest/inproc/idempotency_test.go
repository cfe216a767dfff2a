//go:build awstest

package inproc

import (
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestMadeOnce: of calls at once under one Idempotency-Key one makes the rule,
// receiver or silence and the others answer with it; something else under the key is
// refused.
func TestMadeOnce(t *testing.T) {
	d := Start(t, Options{Scenario: "testdata/cost.yaml", Cluster: "once"})
	ends := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	for path, bodies := range map[string][2]string{
		"/v1/rules":     {`{"name":"mine","on":["node.left"],"clusters":["once"]}`, `{"name":"other","on":["node.left"]}`},
		"/v1/receivers": {`{"name":"pager","kind":"webhook","url":"https://hooks.example.com/x"}`, `{"name":"pager","kind":"webhook","url":"https://hooks.example.com/y"}`},
		"/v1/silences": {`{"matchers":[{"field":"rule","op":"=","value":"x"}],"ends_at":"` + ends + `","reason":"r"}`,
			`{"matchers":[{"field":"rule","op":"=","value":"y"}],"ends_at":"` + ends + `","reason":"r"}`},
	} {
		post := func(body string) (status int, id string) {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, d.URL+path, strings.NewReader(body))
			if err != nil {
				t.Error(err)
				return 0, ""
			}
			r.Header.Set("Authorization", "Bearer "+d.Token)
			r.Header.Set("Content-Type", "application/json")
			r.Header.Set("Idempotency-Key", "k")
			resp, err := d.client.Do(r)
			if err != nil {
				t.Error(err)
				return 0, ""
			}
			defer resp.Body.Close()
			var made struct{ ID string }
			if err := json.NewDecoder(resp.Body).Decode(&made); err != nil {
				t.Error(err)
			}
			return resp.StatusCode, made.ID
		}
		statuses, ids := map[int]int{}, map[string]bool{}
		var mu sync.Mutex
		var wg sync.WaitGroup
		for range 6 {
			wg.Go(func() {
				status, id := post(bodies[0])
				mu.Lock()
				defer mu.Unlock()
				statuses[status]++
				ids[id] = true
			})
		}
		wg.Wait()
		if statuses[201] != 1 || statuses[200] != 5 || len(ids) != 1 {
			t.Errorf("%s: %v, %v", path, statuses, ids)
		}
		if status, _ := post(bodies[1]); status != 422 {
			t.Errorf("%s: something else under the key: %d", path, status)
		}
	}
}
