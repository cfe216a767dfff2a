package notify

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/record"
)

// TestFits: a round has what can be over in the time that is left, and no more.
func TestFits(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind    string
		timeout time.Duration
		left    time.Duration
		want    int
	}{
		{KindWebhook, 0, 16 * time.Second, 0},
		{KindWebhook, 0, 17 * time.Second, perHost},
		{KindWebhook, 0, 35 * time.Second, 2 * perHost},
		{KindWebhook, MaxTimeout, 31 * time.Second, 0},
		{KindWebhook, MaxTimeout, 33 * time.Second, perHost},
		{KindWebhook, MinTimeout, 35 * time.Second, 33 * perHost},
		{KindWebhook, 0, -time.Second, 0},
		{KindAlertmanager, MaxTimeout, patience + keepWithin - 1, 0},
		{KindAlertmanager, MaxTimeout, patience + keepWithin, pushRound},
		{KindAlertmanager, MinTimeout, MinTimeout + keepWithin - 1, 0},
		{KindAlertmanager, MinTimeout, MinTimeout + keepWithin, pushRound},
	} {
		r := &target{ready: &ready{Receiver: Receiver{Spec: Spec{Kind: c.kind, Timeout: alert.Duration(c.timeout)}}}}
		if got := r.fits(c.left, patience); got != c.want {
			t.Errorf("%s with a timeout of %s: %d fit in %s, want %d", c.kind, c.timeout, got, c.left, c.want)
		}
	}
}

// lasting is a context in which so much time is left whenever it is asked, however
// long the machine takes, and which does not end.
type lasting struct {
	context.Context
	left time.Duration
}

func (l lasting) Deadline() (time.Time, bool) { return time.Now().Add(l.left), true }

// TestShortOfTime: with too little time for one try nothing is tried, and the lane is
// due at once for whoever has more; with some, as many as can be over by then, all at
// once.
func TestShortOfTime(t *testing.T) {
	t.Parallel()
	p := setup(t)
	all := make(chan struct{})
	s := newSite(t, p, func(w http.ResponseWriter, _ *http.Request, n int) {
		if n == perHost {
			close(all)
		}
		<-all
		w.WriteHeader(http.StatusBadGateway)
	})
	r, _ := p.receiver(Spec{Name: "r", Kind: KindWebhook, URL: s.URL, Timeout: alert.Duration(MaxTimeout)})
	var alerts []*alert.Alert
	for i := range 30 {
		alerts = append(alerts, p.alert(fmt.Sprintf("rule%d", i)))
	}
	p.tell(alert.TypeFiring, alerts...)
	if err := p.Follow(t.Context(), stream); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		within time.Duration
		tried  int
	}{{MaxTimeout + keepWithin - time.Millisecond, 0}, {2*MaxTimeout + keepWithin - time.Millisecond, perHost}} {
		if err := p.Deliver(lasting{t.Context(), c.within}, record.LaneKey(r.ID)); err != nil {
			t.Fatal(err)
		}
		failed := 0
		for _, d := range p.deliveries(r, Pending) {
			failed += d.Tries
		}
		if n := len(s.all()); n != c.tried || failed != c.tried {
			t.Errorf("within %s %d came and %d failed, want %d", c.within, n, failed, c.tried)
		}
		if due, err := p.db.Due(t.Context(), p.clock(), 1); err != nil || (len(due) == 1) != (c.tried == 0) {
			t.Errorf("within %s: due %v, %v", c.within, due, err)
		}
	}
}

// TestAlertmanagersAtOnce: of a cluster's Alertmanagers, those that do not answer keep
// none of the others waiting, and a round is over in one timeout.
func TestAlertmanagersAtOnce(t *testing.T) {
	t.Parallel()
	p := setup(t)
	var at atomic.Int32
	var once sync.Once
	together := make(chan struct{})
	stuck := newSite(t, p, func(_ http.ResponseWriter, rq *http.Request, _ int) {
		if at.Add(1) == 4 {
			once.Do(func() { close(together) })
		}
		<-rq.Context().Done()
		at.Add(-1)
	})
	am := newFake(t, p)
	urls := []string{stuck.URL + "/1", stuck.URL + "/2", stuck.URL + "/3", stuck.URL + "/4", am.URL}
	r, _ := p.receiver(Spec{Name: "am", Kind: KindAlertmanager, URLs: urls, Timeout: alert.Duration(3 * time.Second)})
	p.tell(alert.TypeFiring, p.alert("hot"))
	if err := p.Follow(t.Context(), stream); err != nil {
		t.Fatal(err)
	}
	if err := p.Deliver(t.Context(), record.LaneKey(r.ID)); err != nil {
		t.Fatal(err)
	}
	select {
	case <-together:
	default:
		t.Error("the stuck ones were not asked at once")
	}
	if n := len(am.firing(p.clock())); n != 1 {
		t.Errorf("%d alerts reached the other", n)
	}
	if d := p.deliveries(r, Pending); len(d) != 1 || d[0].LastError != "/urls/0: no answer in time" {
		t.Errorf("deliveries %+v", d)
	}
}
