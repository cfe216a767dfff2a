package cluster

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"k8s.io/client-go/rest"

	"github.com/opsplane/opsplane/shared/protocol"
)

// readyPath is what an API server answers about itself. Every user may ask it
// (system:public-info-viewer), and priority and fairness never makes it wait.
// https://kubernetes.io/docs/reference/using-api/health-checks/
const readyPath = "/readyz"

// CodeUnavailable is the code by which operations name an API server that does not answer.
const CodeUnavailable = "api_unavailable"

// Unanswered says that the API server answers nothing, or that it cannot serve what it is
// asked for.
type Unanswered struct {
	Since time.Time // the first question, or whatever else, went without an answer
	Err   error     // of the last one
}

func (u *Unanswered) Error() string {
	return fmt.Sprintf("the API server %s since %s: %v", u.what(), u.Since.UTC().Format(time.RFC3339), u.Err)
}

// Why is Error without since when.
func (u *Unanswered) Why() string { return fmt.Sprintf("the API server %s: %v", u.what(), u.Err) }

func (u *Unanswered) what() string {
	if kind := UnconvertedBy(u.Err); kind != "" {
		return "cannot convert " + kind
	}
	return "does not answer"
}

// Unwrap returns the last question's error.
func (u *Unanswered) Unwrap() error { return u.Err }

// Code is CodeUnavailable, or CodeUnconverted where a conversion webhook is what is missing.
func (u *Unanswered) Code() string {
	if UnconvertedBy(u.Err) != "" {
		return CodeUnconverted
	}
	return CodeUnavailable
}

// Blocker is what stands in the way of whoever waits for the API server's word. Since
// when it does is Since alone: of two silences soon after each other the operation shows
// the first one's.
func (u *Unanswered) Blocker() protocol.Blocker {
	since, rule := u.Since.UTC(), "api_server"
	if u.Code() == CodeUnconverted {
		rule = ruleConversion
	}
	return protocol.Blocker{Code: u.Code(), Resource: "cluster", Rule: rule, Detail: u.Why(), Since: &since}
}

// readiness makes the question whether the server can serve. It shares the
// connections of all other requests, so that it fares as they do.
func readiness(cfg *rest.Config) (func(ctx context.Context) error, error) {
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, err
	}
	base, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return nil, err
	}
	u := url.URL{Scheme: base.Scheme, Host: base.Host, Path: strings.TrimSuffix(base.Path, "/") + readyPath}
	return func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
		if err != nil {
			return err
		}
		begun := time.Now()
		resp, err := client.Do(req)
		if err != nil {
			if ctx.Err() != nil {
				return fmt.Errorf("GET %s: no answer within %s", readyPath, time.Since(begun).Round(time.Second))
			}
			return err
		}
		defer func() { _ = resp.Body.Close() }()
		if resp.StatusCode < http.StatusInternalServerError {
			return nil
		}
		return fmt.Errorf("GET %s: %s%s", readyPath, resp.Status, failing(resp.Body))
	}, nil
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
