package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/opsplane/opsplane/agent/executor"
)

// Categories of replies, as package protocol names them.
const (
	OK        = "ok"
	Already   = "already"
	Refused   = "refused"
	Conflict  = "conflict"
	Throttled = "throttled"
	Timeout   = "timeout"
	Failed    = "error"
)

// Reply is how the API server answered one effect.
type Reply struct {
	Category   string
	Err        error         // nil when OK
	RetryAfter time.Duration // what a 429 or 503 asked for; 0: nothing
	Command    string        // the command's id
	// MayHaveLanded: the call may have been done, although Err is all that is known.
	MayHaveLanded bool
}

// NotFound tells whether the object is gone.
func (r Reply) NotFound() bool { return apierrors.IsNotFound(r.Err) }

// AdmissionMost is how long a call may take that is to outlast admission: the API server
// gives a request that changes something up after 34 s, and a webhook after 30 s at most.
// https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#timeouts
const AdmissionMost = 35 * time.Second

// Effect issues one call that changes the cluster: f, under a context that ends
// before the lease does. name and resource say what is touched ("pod/UID"), what
// says how.
//
// The outcome is set when the step cannot go on: the fence said no, the agent
// lacks a right, the server could not be reached (nothing was done) or its answer
// was lost. Every other answer is the caller's to judge: Conflict is an update
// lost to another (or an object of another UID), Already a name that is taken,
// Refused an object that is gone or a denial by admission, Throttled a 429, and
// Failed what is left and was not done. An error of the server that does not tell
// whether it was done is as good as no answer.
func (c *Cluster) Effect(ctx context.Context, t *executor.Task, what, resource, name string, f func(ctx context.Context) error) (Reply, *executor.Outcome) {
	return c.EffectWithin(ctx, t, 0, what, resource, name, f)
}

// EffectWithin is Effect for a call that may take as long as limit, as
// RepeatableWithin is, if limit is not 0. It is for what is conditional on the
// resourceVersion that was read, and for a Job whose program refuses what an older lease
// asks for.
func (c *Cluster) EffectWithin(ctx context.Context, t *executor.Task, limit time.Duration, what, resource, name string, f func(ctx context.Context) error) (Reply, *executor.Outcome) {
	r, o := c.issue(ctx, t, what, resource, name, bound{once: true, limit: limit}, f)
	if o == nil && r.Category == Timeout {
		lost := executor.Ambiguous(fmt.Sprintf("%s %s: %s", what, name, noWord(r.Err)))
		lost.CommandID = r.Command
		return r, &lost
	}
	return r, o
}

func noWord(err error) string {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return "the answer does not tell whether it was done: " + err.Error()
	}
	return "the answer never came"
}

// Repeatable is Effect for a call that does no harm when it is issued again: a
// lost answer is Timeout, for the caller to read the world and go on. An error of
// the server is Failed, and a server that is away sets the outcome, whether or not
// the call was done: of both MayHaveLanded tells whether that is open.
func (c *Cluster) Repeatable(ctx context.Context, t *executor.Task, what, resource, name string, f func(ctx context.Context) error) (Reply, *executor.Outcome) {
	return c.issue(ctx, t, what, resource, name, bound{}, f)
}

// RepeatableWithin is Repeatable for a call that may take as long as limit: admission
// may ask webhooks that take longer than calls are given else. It is fenced as every
// effect is; then ctx, which ends with the lease as it is renewed, bounds it together
// with limit, and no longer the lease as it was when the call began. So it is for
// what does no harm where it lands a little after its lease: an eviction or a deletion,
// which name the UID of a planned pod, and a patch of a node under the resourceVersion that was
// read, which loses against the mark that the next lease writes there before it goes by
// what it read.
func (c *Cluster) RepeatableWithin(ctx context.Context, t *executor.Task, limit time.Duration, what, resource, name string, f func(ctx context.Context) error) (Reply, *executor.Outcome) {
	return c.issue(ctx, t, what, resource, name, bound{limit: limit}, f)
}

// bound is what bounds a call.
type bound struct {
	once  bool          // it must not be made again while the first may have been done
	limit time.Duration // how long it may take, under the lease as it is renewed; 0: as calls are given
}

// issue makes the call.
func (c *Cluster) issue(ctx context.Context, t *executor.Task, what, resource, name string, b bound, f func(ctx context.Context) error) (Reply, *executor.Outcome) {
	ctx = Operation(ctx, t.Assignment)
	id, end := t.Begin(what+" "+name, resource)
	c.pauseAt(BeforeFence, t)
	fenced, release, err := t.Fence(ctx)
	if err != nil {
		end(Refused, err.Error())
		return Reply{Category: Refused, Err: err, Command: id}, fencedOff(id, err)
	}
	defer release()
	c.pauseAt(AfterFence, t)
	lease, within := fenced, c.callTimeout
	if b.limit > 0 {
		lease, within = ctx, b.limit
	}
	under, cancel := context.WithTimeout(lease, within)
	defer cancel()
	// A holder that was stopped since the fence learns here, before its timers
	// have fired, that its time is over.
	if past(fenced) || past(under) {
		end(Timeout, "not sent")
		return Reply{Category: Timeout, Err: executor.ErrFenced, Command: id}, fencedOff(id, executor.ErrFenced)
	}
	seen := &call{}
	err = f(context.WithValue(under, keyCall, seen))
	r := Reply{Category: classify(err, seen), Err: err, RetryAfter: seen.retryAfter, Command: id}
	open := mayHaveLanded(err)
	if b.once && open {
		r.Category = Timeout
	}
	r.MayHaveLanded = open || r.Category == Timeout
	var o *executor.Outcome
	switch {
	case r.Category == unsent:
		r.Category = Failed
		x := Broken(err)
		if lease.Err() != nil && !open {
			x = *fencedOff(id, executor.ErrFenced)
		}
		o = &x
	case r.Category == Refused && apierrors.IsForbidden(err):
		o = c.lacking(lease, seen, err)
	case apierrors.IsUnauthorized(err):
		x := Broken(err)
		o = &x
	}
	if o != nil {
		o.CommandID = id
	}
	output := ""
	if err != nil {
		output = err.Error()
	}
	end(r.Category, output)
	return r, o
}

// past tells whether a context's time is over, before its timer says so.
func past(ctx context.Context) bool {
	d, bounded := ctx.Deadline()
	return bounded && !time.Now().Before(d)
}

// unsent: the request never left, or nobody who could have done it answered.
const unsent = "unsent"

// classify reads an error of one call. What is not known to have been refused
// may have been done.
func classify(err error, seen *call) string {
	var dial *net.OpError
	switch {
	case err == nil:
		return OK
	case apierrors.IsAlreadyExists(err):
		return Already
	case apierrors.IsConflict(err):
		return Conflict
	case apierrors.IsTooManyRequests(err):
		return Throttled
	case apierrors.IsServiceUnavailable(err):
		return unsent // answered before the request was looked at, unless by a balancer
	case apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err):
		return Timeout
	case apierrors.IsInternalError(err) || apierrors.ReasonForError(err) == "":
		// An answer without a reason, or none at all.
	default:
		return Refused
	}
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		if code := status.Status().Code; code >= 400 && code < 500 {
			return Refused
		}
		return Failed
	}
	if seen.method == "" || errors.As(err, &dial) && dial.Op == "dial" {
		return unsent // the client's own rate limit, or nobody listens
	}
	return Timeout // also when an answer began and broke off
}

// twoBudgets is of an error that the API server answers before it stores anything.
// https://kubernetes.io/docs/concepts/scheduling-eviction/api-eviction/#how-api-initiated-eviction-works
const twoBudgets = "more than one PodDisruptionBudget"

// mayHaveLanded tells whether an answer of 5xx leaves open what became of the
// call. A 503 in the API server's own words came before the call was looked at,
// and a few errors before anything was stored. Any other may have come after: of
// etcd that answered too late, or of a balancer in between.
func mayHaveLanded(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Code < http.StatusInternalServerError {
		return false
	}
	if apierrors.IsUnexpectedServerError(err) { // no Status: somebody else's words
		return true
	}
	return !apierrors.IsServiceUnavailable(err) && !strings.Contains(status.Status().Message, twoBudgets) && UncalledBy(err) == nil
}

func fencedOff(id string, err error) *executor.Outcome {
	o := executor.Transient("fenced", "nothing was issued: "+err.Error())
	_, o.ActionCode, o.ActionText = executor.Action("interrupted")
	if !errors.Is(err, executor.ErrFenced) {
		o = executor.Waiting("interrupted", "nothing was issued: "+err.Error())
	}
	o.CommandID = id
	return &o
}

func (c *Cluster) pauseAt(point string, t *executor.Task) {
	if c.pause != nil {
		c.pause(point, t)
	}
}

// retryable statuses: kept with what they mean for a read.
func unavailable(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return true // no answer at all
	}
	code := status.Status().Code
	return code == http.StatusTooManyRequests || code >= 500
}
