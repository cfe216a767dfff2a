package cluster

import (
	"net/http"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/watch"
)

// ofStore tells whether an answer that grants the request had to ask etcd. Without it an
// API server goes on with discovery, health and access reviews, with what it refuses,
// and with what its cache holds.
// https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions
func ofStore(r *http.Request) bool {
	if r == nil || r.URL == nil {
		return false
	}
	q := r.URL.Query()
	if q.Get("dryRun") != "" || !isWatch(r) && (q.Get("resourceVersion") != "" || q.Get("continue") != "") {
		return false
	}
	core, named := strings.Index(r.URL.Path, "/api/"), strings.Index(r.URL.Path, "/apis/")
	if core >= 0 && (named < 0 || core < named) { // version, resource
		return strings.Contains(r.URL.Path[core+len("/api/"):], "/")
	}
	if named < 0 {
		return false
	}
	part := strings.Split(r.URL.Path[named+len("/apis/"):], "/") // group, version, resource
	return len(part) > 2 && part[0] != "authorization.k8s.io" && part[0] != "authentication.k8s.io"
}

func isWatch(r *http.Request) bool {
	w := r.URL.Query().Get("watch")
	return w == "1" || w == "true"
}

// aged is how long a watch must have lasted for its events to come out of etcd. At first
// it brings what the API server's cache holds.
const aged = pulseWithin

// changes follows a watch for what comes out of etcd, which its changes do; bookmarks,
// errors and the end of a watch do not. That it misses some costs a question.
// https://kubernetes.io/docs/reference/using-api/api-concepts/#semantics-for-watch
type changes struct {
	events  *frames
	begun   time.Time
	initial bool // what it began with is not all there: a bookmark ends that
}

func changesOf(r *http.Response) *changes {
	return &changes{framesOf(r.Header), time.Now(), r.Request.URL.Query().Get("sendInitialEvents") == "true"}
}

// in tells whether the next bytes tell of a change.
func (c *changes) in(b []byte) (changed bool) {
	for _, typ := range c.events.take(b) {
		switch watch.EventType(typ) {
		case watch.Bookmark:
			c.initial = false
		case watch.Added, watch.Modified, watch.Deleted:
			changed = changed || !c.initial && time.Since(c.begun) >= aged
		}
	}
	return changed
}
