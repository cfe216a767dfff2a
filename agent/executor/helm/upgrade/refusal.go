package upgrade

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"helm.sh/helm/v4/pkg/storage/driver"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/opsplane/opsplane/agent/executor/kube/cluster/words"
	"github.com/opsplane/opsplane/agent/executor/kube/component/answer"
)

// refused is an error with a code and a text that may leave the cluster; what is
// under it may not, and only goes to the pod's log.
type refused struct {
	code   string
	detail string
	under  error
}

func (r *refused) Error() string { return r.detail }
func (r *refused) Unwrap() error { return r.under }

func refuse(code, format string, args ...any) error {
	return &refused{code: code, detail: fmt.Sprintf(format, args...)}
}

func refuseWith(under error, code, format string, args ...any) error {
	return &refused{code: code, detail: fmt.Sprintf(format, args...), under: under}
}

// refusal is the answer to an error. Of one that nobody has worded it tells what
// is known to hold no values.
func refusal(err error) answer.Answer {
	var r *refused
	switch {
	case forbidden(err) != "":
		return answer.Answer{Code: answer.Forbidden, Detail: forbidden(err)}
	case errors.As(err, &r):
		return answer.Answer{Code: r.code, Detail: r.detail}
	case errors.Is(err, driver.ErrNoDeployedReleases):
		return answer.Answer{Code: answer.ReleaseNotFound, Detail: "no revision of the release is deployed"}
	case errors.Is(err, driver.ErrReleaseExists):
		return answer.Answer{Code: answer.ReleasePending, Detail: "another Helm operation on the release began at the same time"}
	case unreachable(err):
		return answer.Answer{Code: answer.Unavailable, Detail: "the API server does not answer: " + kindOf(err)}
	}
	return answer.Answer{Code: answer.Internal, Detail: kindOf(err)}
}

// forbidden is what the authorizer said, if it is that: user, verb and resource.
// Admission answers 403 too, with words of its own.
func forbidden(err error) string {
	for e := range tree(err) {
		var s apierrors.APIStatus
		if asStatus(e, &s) && apierrors.IsForbidden(e) {
			return denied.FindString(s.Status().Message)
		}
	}
	return ""
}

// k8s.io/apiserver/pkg/endpoints/handlers/responsewriters/errors.go
var denied = regexp.MustCompile(`User "[^"]*" cannot [a-z]+ resource "[^"]*"(?: in API group "[^"]*")?(?: in the namespace "[^"]*"| at the cluster scope)?`)

func asStatus(err error, s *apierrors.APIStatus) bool {
	v, ok := err.(apierrors.APIStatus) //nolint:errorlint // the tree is walked
	if ok {
		*s = v
	}
	return ok
}

func unreachable(err error) bool {
	var op *net.OpError
	var u *url.Error
	return errors.As(err, &op) || errors.As(err, &u) || apierrors.IsServiceUnavailable(err) || apierrors.IsTooManyRequests(err) || errors.Is(err, context.DeadlineExceeded)
}

// tree walks all errors under err, itself first.
func tree(err error) func(yield func(error) bool) {
	return func(yield func(error) bool) { walk(err, yield) }
}

func walk(err error, yield func(error) bool) bool {
	if err == nil {
		return true
	}
	if !yield(err) {
		return false
	}
	switch u := err.(type) { //nolint:errorlint // the tree is walked
	case interface{ Unwrap() error }:
		return walk(u.Unwrap(), yield)
	case interface{ Unwrap() []error }:
		for _, e := range u.Unwrap() {
			if !walk(e, yield) {
				return false
			}
		}
	}
	return true
}

// kindOf words an error without what it may quote.
func kindOf(err error) string {
	var parts []string
	add := func(s string) {
		if s != "" && !slices.Contains(parts, s) {
			parts = append(parts, s)
		}
	}
	for e := range tree(err) {
		var s apierrors.APIStatus
		if asStatus(e, &s) {
			add(statusText(s))
			continue
		}
		switch e := e.(type) { //nolint:errorlint // the tree is walked
		case *net.DNSError:
			add("host " + e.Name + " is not known")
		case *net.OpError:
			if e.Addr != nil {
				add("no connection to " + e.Addr.String())
			}
		}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		add("its time ran out")
	}
	for _, m := range notReady.FindAllStringSubmatch(err.Error(), 5) {
		add(m[1] + " is not ready (" + m[2] + ")")
	}
	for _, m := range hookFailed.FindAllStringSubmatch(err.Error(), 1) {
		add(m[1])
	}
	if hook := words.Uncalled(err.Error()); hook != "" {
		add(fmt.Sprintf("failed calling webhook %q", hook))
	}
	for _, m := range templatePlace.FindAllString(err.Error(), 3) {
		add("at " + m)
	}
	for _, m := range httpStatus.FindAllString(err.Error(), 1) {
		add(m)
	}
	add("the whole message is in the log of the upgrade's pod")
	return strings.Join(parts, "; ")
}

// What of Helm's own texts names things and quotes no values.
var (
	// pkg/kube/statuswait.go; kinds, names and statuses only.
	notReady      = regexp.MustCompile(`resource ([A-Za-z0-9]+/[a-z0-9.-]*/[a-z0-9.:-]+) (?:not ready|still exists)\. status: ([A-Za-z]+)`)
	hookFailed    = regexp.MustCompile(`((?:pre|post)-(?:upgrade|rollback) hooks failed)`)
	templatePlace = regexp.MustCompile(`[A-Za-z0-9._-]+/(?:templates|charts)/[A-Za-z0-9._/-]+:\d+(?::\d+)?`)
	httpStatus    = regexp.MustCompile(`\b[45]\d\d (?:Not Found|Unauthorized|Forbidden|Internal Server Error|Bad Gateway|Service Unavailable|Gateway Timeout)\b`)
	schemaPlace   = regexp.MustCompile(`at '(/[^']*)?'`)
)

// statusText words the API server's answer: for an object that it finds invalid
// only the fields, since the rest quotes what they hold.
func statusText(s apierrors.APIStatus) string {
	st := s.Status()
	what := string(st.Reason)
	if d := st.Details; d != nil {
		if named := strings.TrimSpace(d.Kind + " " + d.Name); named != "" {
			what += " " + named
		}
		var fields []string
		for _, c := range d.Causes {
			if c.Field != "" && len(fields) < 5 {
				fields = append(fields, c.Field)
			}
		}
		if len(fields) > 0 {
			what += " (" + strings.Join(fields, ", ") + ")"
		}
	}
	return strings.TrimSpace(what)
}

// schemaPlaces names where values break a schema.
func schemaPlaces(err error) string {
	var places []string
	for _, m := range schemaPlace.FindAllStringSubmatch(err.Error(), -1) {
		p := m[1]
		if p == "" {
			p = "/"
		}
		if !slices.Contains(places, p) && len(places) < 10 {
			places = append(places, p)
		}
	}
	if len(places) == 0 {
		return ""
	}
	return ": " + strings.Join(places, ", ")
}
