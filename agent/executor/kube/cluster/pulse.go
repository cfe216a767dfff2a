package cluster

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"
)

// How soon a server is missed that takes connections and answers nothing, such as
// one whose process hangs or whose packets get lost: requests wait 8 s and watches
// wait for ever, and client-go gives a connection up after 45 s. Two questions in a
// row go without an answer before it is said: within 11 s (pulseQuiet + 2 pulseWithin).
const (
	pulseQuiet  = 5 * time.Second // without any answer, after which it is asked
	pulseWithin = 3 * time.Second // how long an answer may take
)

// readyPath is what an API server answers about itself. Every user may ask it
// (system:public-info-viewer), and priority and fairness never makes it wait.
// https://kubernetes.io/docs/reference/using-api/health-checks/
const readyPath = "/readyz"

// Unanswered says that the API server answers nothing, or that it cannot serve.
type Unanswered struct {
	For time.Duration // since anything was answered
	Err error         // of the last question
}

func (u *Unanswered) Error() string {
	return fmt.Sprintf("the API server has answered nothing for %s: %v", u.For.Round(time.Second), u.Err)
}

// Unwrap returns the last question's error.
func (u *Unanswered) Unwrap() error { return u.Err }

// Code is the code that operations name it by.
func (u *Unanswered) Code() string { return "api_unavailable" }

// pulse is when the API server was last heard of.
type pulse struct {
	client *http.Client
	url    string

	mu    sync.Mutex
	heard time.Time
}

// open makes the client of the questions. It shares the connections of all others,
// so that it fares as they do.
func (p *pulse) open(cfg *rest.Config) error {
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return err
	}
	base, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return err
	}
	u := url.URL{Scheme: base.Scheme, Host: base.Host, Path: strings.TrimSuffix(base.Path, "/") + readyPath}
	p.client, p.url = client, u.String()
	return nil
}

// note takes an answer to any request. One that the server could not serve is none.
func (p *pulse) note(status int) {
	if status >= http.StatusInternalServerError {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.heard = time.Now()
}

func (p *pulse) last() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.heard
}

// ask asks the server once whether it can serve.
func (p *pulse) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, pulseWithin)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url, nil)
	if err != nil {
		return err
	}
	resp, err := p.client.Do(req) // the transport notes the answer
	if err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("GET %s: no answer within %s", readyPath, pulseWithin)
		}
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode < http.StatusInternalServerError {
		return nil
	}
	return fmt.Errorf("GET %s: %s%s", readyPath, resp.Status, failing(resp.Body))
}

// failing lists the checks that an API server says it does not pass.
func failing(body io.Reader) string {
	var bad []string
	for s := bufio.NewScanner(io.LimitReader(body, 16<<10)); s.Scan() && len(bad) < 8; {
		if check, ok := strings.CutPrefix(s.Text(), "[-]"); ok {
			name, _, _ := strings.Cut(check, " ")
			bad = append(bad, name)
		}
	}
	if len(bad) == 0 {
		return ""
	}
	return ": " + strings.Join(bad, ", ")
}

// Pulse tells whether the API server answers, until ctx ends: an *Unanswered once
// it does not, again with each question, and nil once it does again. While others
// get answers nothing is asked.
func (c *Cluster) Pulse(ctx context.Context, tell func(error)) {
	p := c.pulse
	if p == nil {
		return // made by hand, for tests
	}
	wait := time.NewTimer(pulseQuiet)
	defer wait.Stop()
	for failed := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-wait.C:
		}
		began := time.Now()
		if since := began.Sub(p.last()); since < pulseQuiet {
			if failed > 1 {
				tell(nil)
			}
			failed = 0
			wait.Reset(pulseQuiet - since)
			continue
		}
		err := p.ask(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil || p.last().After(began): // whoever was answered
			if failed > 1 {
				tell(nil)
			}
			failed = 0
			wait.Reset(pulseQuiet)
			continue
		}
		if failed++; failed > 1 {
			tell(&Unanswered{For: time.Since(p.last()), Err: err})
		}
		wait.Reset(max(0, pulseWithin-time.Since(began)))
	}
}
