package cluster

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// An API server whose etcd hangs goes on answering what needs none: that is no end of
// the silence, nor does it put the question off. What came out of etcd is.
func TestPulseWithoutEtcd(t *testing.T) {
	t.Parallel()
	const object = "/api/v1/namespaces/web/pods/web-0"
	for name, tt := range map[string]struct {
		method, path string
		status       int
		ends         bool
	}{
		"a refusal":                     {http.MethodGet, object, http.StatusForbidden, false},
		"what is not there":             {http.MethodGet, object, http.StatusNotFound, false},
		"a busy server":                 {http.MethodGet, object, http.StatusTooManyRequests, false},
		"discovery":                     {http.MethodGet, "/apis/apps/v1", http.StatusOK, false},
		"discovery of the core":         {http.MethodGet, "/api/v1", http.StatusOK, false},
		"its version":                   {http.MethodGet, "/version", http.StatusOK, false},
		"its health":                    {http.MethodGet, "/livez", http.StatusOK, false},
		"an access review":              {http.MethodPost, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", http.StatusCreated, false},
		"a list out of its cache":       {http.MethodGet, "/api/v1/pods?resourceVersion=0", http.StatusOK, false},
		"the next page of a list":       {http.MethodGet, "/api/v1/pods?limit=500&continue=abc", http.StatusOK, false},
		"a dry run":                     {http.MethodPatch, "/api/v1/nodes/n?dryRun=All", http.StatusOK, false},
		"a watch that begins":           {http.MethodGet, "/api/v1/pods?watch=true&resourceVersion=7", http.StatusOK, false},
		"an object":                     {http.MethodGet, object, http.StatusOK, true},
		"a list":                        {http.MethodGet, "/apis/apps/v1/deployments", http.StatusOK, true},
		"a change":                      {http.MethodPost, object + "/eviction", http.StatusCreated, true},
		"of a namespace of its name":    {http.MethodGet, "/api/v1/namespaces/apis/pods", http.StatusOK, true},
		"a custom resource of its name": {http.MethodGet, "/apis/nvidia.com/v1/namespaces/api/dynamographdeployments", http.StatusOK, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p, s, others := beating(t)
				l := listening(t, p)
				s.set(func(r *http.Request) (*http.Response, error) {
					if strings.HasSuffix(r.URL.Path, readyPath) {
						return says(http.StatusInternalServerError, "[-]etcd failed: reason withheld")(r)
					}
					return says(tt.status, "")(r)
				})
				for range 30 {
					req, err := http.NewRequestWithContext(t.Context(), tt.method, "http://server/behind/it"+tt.path, nil)
					if err != nil {
						t.Fatal(err)
					}
					resp, err := others.Do(req)
					if err != nil {
						t.Fatal(err)
					}
					_ = resp.Body.Close()
					time.Sleep(time.Second)
				}
				synctest.Wait()
				_, turns, u := l.now()
				if tt.ends && turns != 0 || !tt.ends && (u == nil || turns != 1) {
					t.Errorf("after 30 s: %v, %d turns", u, turns)
				}
			})
		})
	}
}
