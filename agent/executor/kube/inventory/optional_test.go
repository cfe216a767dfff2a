package inventory

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// unconverted is the API server's answer where nobody converts a kind.
func unconverted(kind string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: 500,
		Message: fmt.Sprintf(`conversion webhook for %s failed: Post "https://lws.lws-system.svc:443/convert?timeout=30s": dial tcp 10.0.0.7:443: connect: connection refused`, kind)}}
}

// The version that is stored needs no conversion: it is watched where another cannot be
// read. Where none can, what is watched stays, and all are tried again at the next look.
func TestVersionThatIsConverted(t *testing.T) {
	t.Parallel()
	graphs := customs[1].versions
	newest, older, none := graphs[0], graphs[1], schema.GroupVersionResource{}
	for name, tt := range map[string]struct {
		served   []schema.GroupVersionResource
		dead     []schema.GroupVersionResource
		at, want schema.GroupVersionResource
		anew     bool
	}{
		"all are well":               {graphs, nil, none, newest, false},
		"none is served":             {nil, nil, newest, none, true},
		"the newest is dead":         {graphs, graphs[:1], newest, older, false},
		"still":                      {graphs, graphs[:1], older, older, true},
		"both are dead":              {graphs, graphs, older, older, false},
		"both are dead, a look on":   {graphs, graphs, older, newest, true},
		"one is served, and is dead": {graphs[1:], graphs[1:], older, older, true},
		"the one that works went":    {graphs[:1], graphs[:1], older, newest, false},
	} {
		x := &optional{listed: func() {}, without: func() {}, turned: make(chan struct{}, 1)}
		for _, v := range tt.dead {
			x.unread(v, errors.New("EOF")) // which says nothing of the version
			x.unread(v, unconverted("nvidia.com/"+v.Version+", Kind=DynamoGraphDeployment"))
		}
		if turned := len(x.turned) > 0; turned != (len(tt.dead) > 0) {
			t.Errorf("%s: turned %v", name, turned)
		}
		if got := x.choose(tt.served, tt.at, tt.anew); got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// The first inventory waits for what nobody converts, and not for ever.
func TestInventoryWithoutWhatNobodyConverts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var listed atomic.Int32
		v := customs[0].versions[0]
		x := &optional{without: func() { listed.Add(1) }, turned: make(chan struct{}, 1)}
		for range 10 {
			x.unread(v, unconverted("leaderworkerset.x-k8s.io/v1, Kind=LeaderWorkerSet"))
			time.Sleep(unconvertedMost / 10)
		}
		if synctest.Wait(); listed.Load() != 1 {
			t.Errorf("after %s it was let go %d times", unconvertedMost, listed.Load())
		}
	})
	h := newHealth(nil, nil)
	h.expect("leaderworkersets")
	h.heard("leaderworkersets", verbList, unconverted("leaderworkerset.x-k8s.io/v1, Kind=LeaderWorkerSet"))
	if err := h.err(); err == nil || !strings.Contains(err.Error(), "conversion webhook for leaderworkerset.x-k8s.io/v1, Kind=LeaderWorkerSet failed") || h.down {
		t.Errorf("it says %v, down %v", err, h.down)
	}
}

// An inventory without what nobody converts says so, and once that is read another is due:
// what the plane knows of it may be gone by then.
func TestInventorySaysWhatIsUnread(t *testing.T) {
	t.Parallel()
	due := func(m *model) bool { d, _ := m.take(most); return d.Whole }
	m := newModel(&Options{}, nil)
	m.begin()
	m.without(kindLeaderWorkerSet)
	for range 2 {
		if got := m.snapshot().Unread; len(got) != 1 || got[0] != kindLeaderWorkerSet || due(m) {
			t.Errorf("unread: %q, and another is due already", got)
		}
	}
	m.with(kindLeaderWorkerSet)
	select {
	case <-m.ring:
	default:
		t.Error("whoever watches is not woken")
	}
	if !due(m) || due(m) {
		t.Error("no other is due, or two are")
	}
	m.without(kindLeaderWorkerSet) // its time ran out as it was read
	if got := m.snapshot().Unread; got != nil {
		t.Errorf("unread: %q, of what was read", got)
	}
	m.with(kindLeaderWorkerSet)
	if due(m) {
		t.Error("another is due, for nothing")
	}
}
