package agentcmd

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/opsplane/opsplane/agent/loop"
	"github.com/opsplane/opsplane/shared/awsclient"
	"github.com/opsplane/opsplane/shared/queue"
	"github.com/opsplane/opsplane/shared/queue/sqs"
)

// regionShape is how AWS names regions, local zones apart (AWS General
// Reference, "Regional endpoints").
var regionShape = regexp.MustCompile(`^[a-z]{2,}(-[a-z]+)+-[0-9]+$`)

// Hosts of SQS that name their region: the regional endpoint, its FIPS and
// dual-stack kin, the one of before 2012, and an interface VPC endpoint (Amazon
// SQS Developer Guide and AWS General Reference, "Amazon SQS endpoints").
var (
	regionalHost = regexp.MustCompile(`^sqs(?:-fips)?\.([a-z0-9-]+)\.(?:amazonaws\.com(?:\.cn)?|api\.aws)$`)
	olderHost    = regexp.MustCompile(`^([a-z0-9-]+)\.queue\.amazonaws\.com(?:\.cn)?$`)
	vpcHost      = regexp.MustCompile(`^[a-z0-9.-]+\.sqs\.([a-z0-9-]+)\.vpce\.amazonaws\.com(?:\.cn)?$`)
)

// place is where a queue's URL says that its queue is.
type place struct {
	region string // empty: the URL does not say
	// endpoint to call instead of the region's own; empty: that one.
	endpoint string
}

// locate reads a queue's URL as the plane gives it: https, or http to this
// machine, as for the plane itself.
func locate(queueURL string, insecure bool) (place, error) {
	u, err := url.Parse(queueURL)
	switch {
	case err != nil || (u.Scheme != "https" && u.Scheme != "http") || u.Host == "":
		return place{}, errors.New("it is not http(s)://host/account/name")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return place{}, errors.New("it has more than host, account and name")
	case strings.Count(strings.Trim(u.Path, "/"), "/") < 1:
		return place{}, errors.New("it names no account and queue")
	case !insecure && sendsInClear(queueURL):
		return place{}, errors.New("it is http:// on another machine, where anybody on the way can read what the agent signs; --insecure accepts that")
	}
	host := strings.ToLower(u.Hostname())
	for _, shape := range []*regexp.Regexp{regionalHost, olderHost} {
		if m := shape.FindStringSubmatch(host); m != nil && u.Port() == "" {
			return place{region: m[1]}, nil
		}
	}
	p := place{endpoint: u.Scheme + "://" + u.Host}
	if m := vpcHost.FindStringSubmatch(host); m != nil {
		p.region = m[1]
	}
	return p, nil
}

// opener opens queues of SQS with the credentials that AWS's tools use too:
// environment, shared configuration, web identity (IRSA), container and instance
// roles. They are looked for at the first call and renewed as they end.
func opener(ctx context.Context, o options) func(string) (queue.Receiver, error) {
	return func(queueURL string) (queue.Receiver, error) {
		at, err := locate(queueURL, o.insecure)
		if err != nil {
			return nil, fmt.Errorf("queue URL: %w", err)
		}
		var with []func(*config.LoadOptions) error
		if region := firstOf(o.awsRegion, at.region); region != "" {
			with = append(with, config.WithRegion(region))
		}
		cfg, err := awsclient.Load(ctx, with...)
		if err != nil {
			return nil, err
		}
		if cfg.Region == "" {
			return nil, errors.New("the queue's region is not known: its URL does not say; give --aws-region or AWS_REGION")
		}
		client := awssqs.NewFromConfig(cfg, func(c *awssqs.Options) {
			c.Credentials = found{c.Credentials}
			// An endpoint of the environment counts before one of the plane's.
			if at.endpoint != "" && c.BaseEndpoint == nil {
				c.BaseEndpoint = &at.endpoint
				c.HTTPClient = awsclient.Buffered(c.HTTPClient)
			}
		})
		return cloudQueue{sqs.NewReceiver(client, queueURL)}, nil
	}
}

func firstOf(ss ...string) string {
	for _, s := range ss {
		if s != "" {
			return s
		}
	}
	return ""
}

// errNoCredentials: none of the places where AWS's tools look has credentials,
// or they cannot be renewed.
var errNoCredentials = errors.New("no AWS credentials: set a role for this agent (instance, IRSA or container), a profile or AWS_ACCESS_KEY_ID")

// found marks the error of a search for credentials, which the SDK does not type.
type found struct{ aws.CredentialsProvider }

func (f found) Retrieve(ctx context.Context) (aws.Credentials, error) {
	c, err := f.CredentialsProvider.Retrieve(ctx)
	if err != nil {
		return c, fmt.Errorf("%w: %w", errNoCredentials, err)
	}
	return c, nil
}

// cloudQueue says in the loop's words that credentials are of no use. It offers
// no Bury: an agent may not write to the dead letters' queue.
type cloudQueue struct{ r *sqs.Receiver }

var _ queue.Receiver = cloudQueue{}

func (q cloudQueue) Receive(ctx context.Context, name string, most int, wait, visibility time.Duration) ([]queue.Message, error) {
	ms, err := q.r.Receive(ctx, name, most, wait, visibility)
	return ms, refused(err)
}

func (q cloudQueue) Delete(ctx context.Context, name string, receipts ...string) error {
	return refused(q.r.Delete(ctx, name, receipts...))
}

func (q cloudQueue) Extend(ctx context.Context, name, receipt string, d time.Duration) error {
	return refused(q.r.Extend(ctx, name, receipt, d))
}

// refused marks the errors that only other credentials mend: those that AWS
// refuses, and none found.
func refused(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, sqs.ErrRefused) || errors.Is(err, errNoCredentials) {
		return fmt.Errorf("%w: %w", loop.ErrQueueRefused, err)
	}
	return err
}
