package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// heart answers as a test says; it is asked through a transport that notes what
// it answers, as the agent's own is.
type heart struct {
	mu     sync.Mutex
	answer func(r *http.Request) (*http.Response, error)
	asked  []string // the paths
}

func (s *heart) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	s.asked = append(s.asked, r.URL.Path)
	answer := s.answer
	s.mu.Unlock()
	return answer(r)
}

func (s *heart) set(answer func(r *http.Request) (*http.Response, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = answer
}

func (s *heart) paths() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked)
}

func (s *heart) count() int { return len(s.paths()) }

func says(status int, body string) func(*http.Request) (*http.Response, error) {
	return func(r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: status, Status: http.StatusText(status), Body: io.NopCloser(strings.NewReader(body)), Request: r, Header: http.Header{}}, nil
	}
}

func hangs(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

func refuses(*http.Request) (*http.Response, error) { return nil, errors.New("connection refused") }

// listener is what Tell tells.
type listener struct {
	mu    sync.Mutex
	at    *Unanswered
	since time.Time // of the last turn
	turns int
}

func (l *listener) tell(u *Unanswered) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if (u == nil) != (l.at == nil) {
		l.turns, l.since = l.turns+1, time.Now()
	}
	l.at = u
}

func (l *listener) now() (since time.Time, turns int, silent *Unanswered) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.since, l.turns, l.at
}

// beating is a Pulse of a server, and the client of others who ask it.
func beating(t *testing.T) (*Pulse, *heart, *http.Client) {
	t.Helper()
	s, p := &heart{answer: says(http.StatusOK, "ok")}, NewPulse(nil)
	cfg := &rest.Config{Host: "http://server/behind/it", Transport: &transport{next: s, heard: p.note}}
	ask, err := readiness(cfg)
	if err != nil {
		t.Fatal(err)
	}
	p.ask = ask
	return p, s, &http.Client{Transport: cfg.Transport}
}

// listening is one who listens to it while the test lasts.
func listening(t *testing.T, p *Pulse) *listener {
	l := &listener{}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.Tell(ctx, l.tell)
	}()
	t.Cleanup(func() { cancel(); <-done })
	return l
}

// A server that stops answering, however it does, is missed within 10 s, not for
// one lost answer, and is well again with the first one.
func TestPulse(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		broken func(*http.Request) (*http.Response, error)
		says   string
	}{
		"hangs":        {hangs, "GET /readyz: no answer within 3s"},
		"is gone":      {refuses, "connection refused"},
		"cannot serve": {says(http.StatusInternalServerError, "[+]ping ok\n[-]etcd failed: reason withheld\n[-]shutdown failed: reason withheld\nreadyz check failed"), "Internal Server Error: etcd, shutdown"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p, s, _ := beating(t)
				l := listening(t, p)
				time.Sleep(time.Minute + pulseQuiet/2)
				if _, turns, u := l.now(); u != nil || turns != 0 {
					t.Fatalf("well: %v, %d turns", u, turns)
				}
				for _, path := range s.paths() {
					if path != "/behind/it/readyz" {
						t.Errorf("it is asked at %s", path)
					}
				}
				s.set(c.broken)
				at := time.Now()
				time.Sleep(10 * time.Second)
				synctest.Wait()
				since, _, u := l.now()
				if u == nil || u.Code() != "api_unavailable" || !strings.Contains(u.Error(), c.says) {
					t.Fatalf("%s after %s: %v", name, time.Since(at), u)
				}
				if since.Sub(at) < pulseWithin {
					t.Errorf("said after %s: one lost answer is enough", since.Sub(at))
				}
				if begun := u.Since.Sub(at); begun < 0 || begun > pulseQuiet || !strings.Contains(u.Error(), "does not answer since "+u.Since.UTC().Format(time.RFC3339)) {
					t.Errorf("silent since %s after it stopped: %v", begun, u)
				}
				if b := u.Blocker(); b.Code != "api_unavailable" || strings.Replace(u.Error(), " since "+u.Since.UTC().Format(time.RFC3339), "", 1) != b.Detail || !b.Since.Equal(u.Since) {
					t.Errorf("blocker %+v", b)
				}
				before := s.count()
				time.Sleep(time.Minute)
				if n := s.count() - before; n < 15 || n > 25 {
					t.Errorf("asked %d times in a minute of silence", n)
				}
				if _, _, now := l.now(); now == nil || !now.Since.Equal(u.Since) {
					t.Errorf("a minute later: %v", now)
				}
				s.set(says(http.StatusForbidden, "no")) // an answer is an answer
				time.Sleep(pulseWithin)
				synctest.Wait()
				if _, turns, u := l.now(); u != nil || turns != 2 {
					t.Errorf("%s after it came back: %v, %d turns", pulseWithin, u, turns)
				}
			})
		})
	}
}

// One answer that is lost is nothing to tell of.
func TestPulseMissesOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, s, _ := beating(t)
		l := listening(t, p)
		s.set(func(r *http.Request) (*http.Response, error) {
			s.set(says(http.StatusOK, "ok"))
			return hangs(r)
		})
		time.Sleep(time.Minute)
		if _, turns, u := l.now(); u != nil || turns != 0 {
			t.Errorf("%v, %d turns", u, turns)
		}
	})
}

// While other requests are answered nothing is asked, and one that is answered in a
// silence ends it at once.
func TestPulseWhileOthersAreAnswered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, s, others := beating(t)
		l := listening(t, p)
		ask := func() {
			r, err := others.Get("http://server/behind/it/api/v1/nodes")
			if err != nil {
				t.Fatal(err)
			}
			_ = r.Body.Close()
			time.Sleep(time.Second)
		}
		readyz := func() (n int) {
			for _, path := range s.paths() {
				if strings.HasSuffix(path, readyPath) {
					n++
				}
			}
			return n
		}
		for range 60 {
			ask()
		}
		if n := readyz(); n != 0 {
			t.Errorf("asked %d times while others were answered", n)
		}
		s.set(func(r *http.Request) (*http.Response, error) {
			if strings.HasSuffix(r.URL.Path, readyPath) {
				return hangs(r)
			}
			return says(http.StatusServiceUnavailable, "")(r) // nobody is served
		})
		for range 15 {
			ask()
		}
		synctest.Wait()
		if _, _, u := l.now(); u == nil {
			t.Error("well while nobody is served")
		}
		s.set(func(r *http.Request) (*http.Response, error) {
			if strings.HasSuffix(r.URL.Path, readyPath) {
				return hangs(r)
			}
			return says(http.StatusOK, "")(r)
		})
		ask()
		synctest.Wait()
		if since, _, u := l.now(); u != nil || time.Since(since) > time.Second {
			t.Errorf("somebody was served: %v", u)
		}
	})
}

// However many listen, one asks; while nobody does nothing is asked, and nobody is
// told of an old silence.
func TestPulseIsShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, s, _ := beating(t)
		time.Sleep(time.Hour)
		if n := s.count(); n != 0 {
			t.Errorf("asked %d times while nobody listened", n)
		}
		s.set(hangs)
		begun := time.Now()
		var stops []func()
		for range 100 {
			stops = append(stops, p.Listen())
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := s.count(); n > 21 {
			t.Errorf("asked %d times in a minute", n)
		}
		if u, _ := p.State(); u == nil || !u.Since.Equal(begun) { // that it was silent before nobody knows
			t.Errorf("listened since %s: %v", begun, u)
		}
		for _, stop := range stops {
			stop()
			stop()
		}
		synctest.Wait()
		if u, _ := p.State(); u != nil {
			t.Errorf("nobody listens: %v", u)
		}
		before := s.count()
		time.Sleep(time.Hour)
		if n := s.count() - before; n != 0 {
			t.Errorf("asked %d times while nobody listened any more", n)
		}
		s.set(says(http.StatusOK, "ok"))
		defer p.Listen()()
		synctest.Wait()
		if n := s.count() - before; n != 1 {
			t.Errorf("asked %d times when somebody began to listen after an hour", n)
		}
		var none *Pulse
		none.Listen()()
		none.Tell(t.Context(), func(*Unanswered) { t.Error("a Pulse that is none told") })
		if u, changed := none.State(); u != nil || changed != nil {
			t.Errorf("a Pulse that is none: %v", u)
		}
	})
}

// A request that the client's own limit holds back was never asked: the question
// goes past it.
func TestPulseIsNotLimited(t *testing.T) {
	t.Parallel()
	s, c := setup(t)
	s.answer = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) }
	cfg := rest.CopyConfig(c.Config)
	cfg.QPS, cfg.Burst = 0.001, 1
	ask, err := readiness(cfg)
	if err != nil {
		t.Fatal(err)
	}
	client := kubernetes.NewForConfigOrDie(cfg)
	for _, held := range []bool{false, true} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err := client.CoreV1().Nodes().Get(ctx, "n", metav1.GetOptions{})
		cancel()
		if strings.Contains(fmt.Sprint(err), "rate limiter") != held {
			t.Errorf("held back %t: %v", held, err)
		}
		if err := ask(t.Context()); err != nil {
			t.Errorf("asked past it: %v", err)
		}
	}
}
