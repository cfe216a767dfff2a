package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// silentFor is how long the API server may say nothing to a drain that waits
	// until it is asked whether it is there, and pulseFor how long it has to answer.
	silentFor = 4 * time.Second
	pulseFor  = 3 * time.Second
)

// pulse tells whether the API server answers. A watch does not: over a connection
// that nobody has closed (a server that hangs, a network that swallows packets) it is
// as silent as one that has nothing to tell, for the 45 s until client-go's own
// pings give it up. All drains of an agent share it, so that it costs one cheap read
// now and then, however many of them wait.
type pulse struct {
	mu      sync.Mutex
	heard   time.Time // the last answer
	asked   time.Time // the last question
	asking  bool
	failed  time.Time // when err came up
	since   time.Time // what err is about
	err     error     // why nothing is known; nil: it answers
	changed chan struct{}
}

// hear notes that the API server answered at a time.
func (p *pulse) hear(at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.heardAt(at)
}

func (p *pulse) heardAt(at time.Time) {
	if at.After(p.heard) {
		p.heard = at
	}
	if p.err != nil && at.After(p.failed) {
		p.err = nil
		p.tell()
	}
}

func (p *pulse) tell() {
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
}

// feel tells since when and why the API server does not answer, asks it with ask if
// it was silent for too long, and says when to come again. changed is closed when the
// answer is another one.
func (p *pulse) feel(ask func(ctx context.Context) error) (since time.Time, again time.Duration, changed <-chan struct{}, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.changed == nil {
		p.changed = make(chan struct{})
	}
	last := p.heard
	if p.asked.After(last) {
		last = p.asked
	}
	again = silentFor - time.Since(last)
	if again <= 0 {
		if !p.asking {
			p.asking, p.asked = true, time.Now()
			go p.ask(ask)
		}
		again = silentFor
	}
	return p.since, again, p.changed, p.err
}

func (p *pulse) ask(ask func(ctx context.Context) error) {
	asked := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), pulseFor)
	defer cancel()
	err := ask(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asking = false
	switch {
	case answered(err):
		p.heardAt(time.Now())
	case strings.Contains(err.Error(), "client rate limiter"): // it was never asked
	default:
		if p.err == nil {
			p.since = asked
			defer p.tell()
		}
		p.err, p.failed = err, time.Now()
	}
}

// answered tells whether the API server said anything, if only that it refuses.
func answered(err error) bool {
	var status apierrors.APIStatus
	return err == nil || errors.As(err, &status) && status.Status().Code < 500
}

// feel says that the API server does not answer, if it does not. Nothing is known of
// any pod then.
func (d *drive) feel(l *look) {
	s := d.s
	_, since, _, err := s.pods.State()
	d.pulse.hear(s.pods.LastHeard())
	s.mu.Lock()
	if s.nodes != nil {
		d.pulse.hear(s.nodes.LastHeard())
	}
	name := s.node.Name
	s.mu.Unlock()
	why, again, changed := d.silence(name, since, err)
	l.pulse = changed
	l.wake(again)
	if why != "" {
		l.away = true
		l.hold("api_unavailable", "cluster", "api_server", why, nil)
	}
}

// silence says since when and why the API server does not answer, "" if it does:
// where a watch knows it (failed, since), in its words. It is asked by reading a node
// as it is at hand there.
func (e *drainer) silence(node string, since time.Time, failed error) (why string, again time.Duration, changed <-chan struct{}) {
	silent, again, changed, err := e.pulse.feel(func(ctx context.Context) error {
		_, err := e.c.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{ResourceVersion: "0"})
		return err
	})
	if failed != nil {
		silent, err = since, failed
	}
	if err == nil {
		return "", again, changed
	}
	return fmt.Sprintf("the API server does not answer since %s: %v", silent.UTC().Format(time.RFC3339), err), again, changed
}
