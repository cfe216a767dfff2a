// Package remote is the agent's end of its cluster's queue on one machine: a
// queue.Receiver over the plane's long-poll endpoint. On AWS the agent reads
// SQS instead.
//
// The token says which queue: the queue argument of the seam is ignored.
package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/opsplane/opsplane/shared/problem"
	"github.com/opsplane/opsplane/shared/queue"
)

// ErrRefused: the plane does not accept the token, or not for a queue. Trying
// again does not help.
var ErrRefused = errors.New("agent token refused")

// Error is an answer that is no success. errors.Is tells its kind: ErrRefused
// (401, 403), queue.ErrNoQueue (404), queue.ErrStaleReceipt (410), else
// queue.ErrUnavailable.
type Error struct {
	Status int
	Code   string // error_code of the plane's problem; empty when it sent none
	Detail string
	// RetryAfter is how long the plane asks to wait; zero when it does not.
	RetryAfter time.Duration
}

func (e *Error) Error() string {
	s := "plane answered " + strconv.Itoa(e.Status)
	if e.Code != "" {
		s += " " + e.Code
	}
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return s
}

// Unwrap gives the kind.
func (e *Error) Unwrap() error {
	switch e.Status {
	case http.StatusUnauthorized, http.StatusForbidden:
		return ErrRefused
	case http.StatusNotFound:
		return queue.ErrNoQueue
	case http.StatusGone:
		return queue.ErrStaleReceipt
	}
	return queue.ErrUnavailable
}

// Options describe the plane.
type Options struct {
	Base  string // URL of the plane, without the path
	Token string // the agent's bearer token
	// Client is used as it is but for redirects, which are never followed; nil
	// means http.DefaultTransport. It needs no timeout.
	Client *http.Client
	// Slack is how long an answer may take beyond the wait that was asked for;
	// zero means 10 s.
	Slack time.Duration
	// UserAgent is sent when set.
	UserAgent string
}

// Client is the receiver; make one with New.
type Client struct {
	base  string
	o     Options
	httpc *http.Client
}

var _ queue.Receiver = (*Client)(nil)

// New checks the options. It does not call the plane.
func New(o Options) (*Client, error) {
	u, err := url.Parse(o.Base)
	if err != nil {
		return nil, fmt.Errorf("plane url: %w", err)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" {
		return nil, fmt.Errorf("plane url %q: want http(s)://host, without credentials and query", u.Redacted())
	}
	if o.Token == "" {
		return nil, errors.New("no agent token")
	}
	if o.Slack == 0 {
		o.Slack = 10 * time.Second
	}
	c := &Client{base: strings.TrimSuffix(o.Base, "/") + "/v1/agent/queue/", o: o, httpc: &http.Client{}}
	if o.Client != nil {
		*c.httpc = *o.Client
	}
	// A redirect would carry the token elsewhere or turn the POST into a GET.
	c.httpc.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return c, nil
}

// maxAnswer bounds an answer: a full batch whose bodies are all escaped.
const maxAnswer = queue.MaxBatch * (6*queue.MaxBodyBytes + 4<<10)

type receiveRequest struct {
	Max          int   `json:"max"`
	WaitMS       int64 `json:"wait_ms"`
	VisibilityMS int64 `json:"visibility_ms"`
}

type receiveAnswer struct {
	Messages []struct {
		ID       string `json:"id"`
		Receipt  string `json:"receipt"`
		Body     string `json:"body"`
		Receives int    `json:"receives"`
	} `json:"messages"`
}

type deleteRequest struct {
	Receipts []string `json:"receipts"`
}

type extendRequest struct {
	Receipt      string `json:"receipt"`
	VisibilityMS int64  `json:"visibility_ms"`
}

// Receive implements queue.Receiver. Times are cut to milliseconds.
func (c *Client) Receive(ctx context.Context, _ string, max int, wait, visibility time.Duration) ([]queue.Message, error) {
	if max < 1 || max > queue.MaxBatch || wait < 0 || wait > queue.MaxWait || visibility < time.Millisecond {
		return nil, fmt.Errorf("%w: receive %d, wait %s, visibility %s", queue.ErrInvalid, max, wait, visibility)
	}
	var answer receiveAnswer
	q := receiveRequest{Max: max, WaitMS: wait.Milliseconds(), VisibilityMS: visibility.Milliseconds()}
	if err := c.call(ctx, "receive", wait, q, &answer); err != nil {
		return nil, err
	}
	ms := make([]queue.Message, 0, len(answer.Messages))
	for _, m := range answer.Messages {
		ms = append(ms, queue.Message{ID: m.ID, Receipt: m.Receipt, Body: []byte(m.Body), Receives: m.Receives})
	}
	return ms, nil
}

// Delete implements queue.Receiver; stale receipts are ignored.
func (c *Client) Delete(ctx context.Context, _ string, receipts ...string) error {
	if n := len(receipts); n < 1 || n > queue.MaxBatch {
		return fmt.Errorf("%w: delete of %d messages, a call takes 1 to %d", queue.ErrInvalid, n, queue.MaxBatch)
	}
	err := c.call(ctx, "delete", 0, deleteRequest{Receipts: receipts}, nil)
	if errors.Is(err, queue.ErrStaleReceipt) {
		return nil
	}
	return err
}

// Extend implements queue.Receiver. A stale receipt is queue.ErrStaleReceipt.
func (c *Client) Extend(ctx context.Context, _, receipt string, d time.Duration) error {
	if d < 0 {
		return fmt.Errorf("%w: extend by %s", queue.ErrInvalid, d)
	}
	return c.call(ctx, "extend", 0, extendRequest{Receipt: receipt, VisibilityMS: d.Milliseconds()}, nil)
}

// call posts one request; out may be nil.
func (c *Client) call(ctx context.Context, name string, wait time.Duration, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("queue %s: %w", name, err)
	}
	bounded, cancel := context.WithTimeout(ctx, wait+c.o.Slack)
	defer cancel()
	req, err := http.NewRequestWithContext(bounded, http.MethodPost, c.base+name, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("queue %s: %w", name, err)
	}
	req.Header.Set("Authorization", "Bearer "+c.o.Token)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, "+problem.ContentType)
	if c.o.UserAgent != "" {
		req.Header.Set("User-Agent", c.o.UserAgent)
	}
	resp, err := c.httpc.Do(req)
	if err != nil {
		return broken(ctx, name, err)
	}
	defer func() { _ = resp.Body.Close() }() // read to its end below, or given up
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return broken(ctx, name, err)
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return fmt.Errorf("queue %s: %w", name, errorOf(resp, answer))
	}
	if out == nil {
		return nil
	}
	if len(answer) > maxAnswer {
		return fmt.Errorf("queue %s: %w: answer of more than %d bytes", name, queue.ErrUnavailable, maxAnswer)
	}
	if err := json.Unmarshal(answer, out); err != nil {
		return fmt.Errorf("queue %s: %w: answer is not the plane's: %w", name, queue.ErrUnavailable, err)
	}
	return nil
}

// broken tells a caller that went away from a plane that did.
func broken(ctx context.Context, name string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("queue %s: %w", name, ctx.Err())
	}
	return fmt.Errorf("queue %s: %w: %w", name, queue.ErrUnavailable, err)
}

func errorOf(resp *http.Response, body []byte) *Error {
	e := &Error{Status: resp.StatusCode}
	if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && s > 0 {
		e.RetryAfter = time.Duration(min(s, 3600)) * time.Second
	}
	// A proxy's own answer is no problem document: the status has to do.
	var p problem.Problem
	if media, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";"); media == problem.ContentType && json.Unmarshal(body, &p) == nil {
		e.Code, e.Detail = string(p.ErrorCode), p.Detail
	}
	return e
}
