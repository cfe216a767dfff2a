// Package aws is what the command line does in an AWS account by the caller's own
// credentials, past the API: the first administrator's token, the move of a
// one-machine ledger into a deployment's table, and the proof of what a table
// holds.
package aws

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/cloudformation"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/smithy-go"

	"github.com/opsplane/opsplane/shared/awsclient"
	"github.com/opsplane/opsplane/shared/ledger/dynamo"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/queue/sqs"
	"github.com/opsplane/opsplane/shared/record"
)

// Names of the stack's outputs that are read here; template.yaml has them.
const (
	outputTable  = "TableName"
	outputPrefix = "QueuePrefix"
	outputURL    = "ApiUrl"
)

// prefixShape leaves room in a queue's name for a cluster's (Amazon SQS API
// Reference, CreateQueue: 80 letters, digits, hyphens and underscores).
var prefixShape = regexp.MustCompile(`^[A-Za-z0-9_-]{1,42}$`)

// Options say which deployment is meant: by its stack, or by its table.
type Options struct {
	Stack string // name of the CloudFormation stack
	Table string // name of the table
	// QueuePrefix begins the queues' names; empty: as the stack says, else the
	// table's name and a hyphen, as the template has it.
	QueuePrefix string
	Region      string // empty: as AWS's tools find it
	Endpoint    string // of another AWS than Amazon's; empty: as AWS's tools find it
	Logger      *slog.Logger
}

// Deployment is an open deployment.
type Deployment struct {
	Table, QueuePrefix string
	URL                string // of the API; empty when only the table is known
	Region             string
	Ledger             *dynamo.DB
	Store              *record.Store
	Queues             *sqs.Engine

	config aws.Config
	db     *dynamodb.Client
}

// Open finds the deployment. It reads the stack's outputs when a stack is named,
// and calls nothing else.
func Open(ctx context.Context, o Options) (*Deployment, error) {
	if (o.Stack == "") == (o.Table == "") {
		return nil, errors.New("name the deployment by --stack or by --table")
	}
	cfg, err := load(ctx, o)
	if err != nil {
		return nil, err
	}
	d := &Deployment{Table: o.Table, QueuePrefix: o.QueuePrefix, Region: cfg.Region, config: cfg, db: dynamodb.NewFromConfig(cfg)}
	if o.Stack != "" {
		if err := d.fromStack(ctx, o.Stack); err != nil {
			return nil, err
		}
	}
	if d.QueuePrefix == "" {
		d.QueuePrefix = d.Table + "-"
	}
	if !prefixShape.MatchString(d.QueuePrefix) {
		return nil, fmt.Errorf("queues' names cannot begin with %q: it is 1 to 42 letters, digits, hyphens and underscores; give --queue-prefix", d.QueuePrefix)
	}
	if d.Ledger, err = dynamo.New(dynamo.Options{Client: d.db, Table: d.Table, Sharded: record.BusyPartitions(), Logger: o.Logger}); err != nil {
		return nil, err
	}
	d.Store = &record.Store{Ledger: d.Ledger, Now: time.Now, Timing: operation.AWS}
	d.Queues = sqs.New(sqs.Options{Client: awssqs.NewFromConfig(cfg), Prefix: d.QueuePrefix, Logger: o.Logger})
	return d, nil
}

// load reads the SDK's configuration; an endpoint that is named here is as good
// as one of the environment.
func load(ctx context.Context, o Options) (aws.Config, error) {
	var with []func(*config.LoadOptions) error
	if o.Region != "" {
		with = append(with, config.WithRegion(o.Region))
	}
	if o.Endpoint != "" {
		with = append(with, config.WithBaseEndpoint(o.Endpoint))
	}
	cfg, err := awsclient.Load(ctx, with...)
	if err != nil {
		return cfg, err
	}
	if cfg.Region == "" {
		return cfg, errors.New("no AWS region: give --region or AWS_REGION")
	}
	if o.Endpoint != "" {
		cfg.HTTPClient = awsclient.Buffered(cfg.HTTPClient)
	}
	return cfg, nil
}

// fromStack reads the names of the deployment's parts.
func (d *Deployment) fromStack(ctx context.Context, stack string) error {
	out, err := cloudformation.NewFromConfig(d.config).DescribeStacks(ctx, &cloudformation.DescribeStacksInput{StackName: &stack})
	if err != nil {
		return fmt.Errorf("read stack %s: %w", stack, plain(err))
	}
	if len(out.Stacks) != 1 {
		return fmt.Errorf("read stack %s: there are %d of that name", stack, len(out.Stacks))
	}
	have := map[string]string{}
	for _, o := range out.Stacks[0].Outputs {
		have[aws.ToString(o.OutputKey)] = aws.ToString(o.OutputValue)
	}
	if d.Table = have[outputTable]; d.Table == "" {
		return fmt.Errorf("read stack %s: it has no output %s: is it a deployment of Opsplane, and has it ended?", stack, outputTable)
	}
	d.URL = have[outputURL]
	if d.QueuePrefix == "" {
		d.QueuePrefix = have[outputPrefix]
	}
	return nil
}

// plain leaves of an error of AWS what a person can use: its code and message.
func plain(err error) error {
	if api, ok := errors.AsType[smithy.APIError](err); ok {
		return fmt.Errorf("%s: %s", api.ErrorCode(), strings.TrimSpace(api.ErrorMessage()))
	}
	return err
}
