package cluster

import (
	"bytes"
	"net/http"
	"strings"
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
	if q.Get("dryRun") != "" || q.Get("resourceVersion") != "" && !isWatch(r) {
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

var (
	bookmark = []byte("BOOKMARK")
	failure  = []byte("ERROR")
)

// ofCache tells whether what a watch brought may be a bookmark or an error, which need
// no etcd, and not a change, which does. That it calls some changes so costs a question.
func ofCache(b []byte) bool { return bytes.Contains(b, bookmark) || bytes.Contains(b, failure) }
