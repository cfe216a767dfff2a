package main

import (
	"context"

	"github.com/opsplane/opsplane/infra/awstest/rig"
)

// runOnLocalStack runs the conformance suites of all engines and the whole flow on
// LocalStack's image: its DynamoDB, Streams, SQS and EventBridge, with the API in
// containers of sam local. What the stream, the schedule and the queues set off
// runs in this process. endpoint, if given, is another local AWS in its place.
func runOnLocalStack(ctx context.Context, r *rig.Rig, root, endpoint string) error {
	if endpoint == "" {
		if err := timed(r, "LocalStack", func(ctx context.Context) (err error) { endpoint, err = r.LocalStackInDocker(ctx); return err })(ctx); err != nil {
			return err
		}
	}
	var docker *rig.Docker
	err := together(ctx,
		timed(r, "Docker", func(ctx context.Context) (err error) { docker, err = r.Docker(ctx); return err }),
		timed(r, "sam build", r.Build),
		timed(r, "the agent", r.BuildAgent))
	if err != nil {
		return err
	}
	const stage = "localstack"
	s, err := rig.Provision(ctx, endpoint, stage)
	if err != nil {
		return err
	}
	work, end := context.WithCancel(ctx)
	wait, err := s.Workers(work)
	if err != nil {
		end()
		return err
	}
	defer wait()
	defer end()
	admin, err := s.AdminToken(ctx)
	if err != nil {
		return err
	}
	var url string
	if err := timed(r, "sam local", func(ctx context.Context) (err error) { url, err = r.SAMLocal(ctx, docker, s); return err })(ctx); err != nil {
		return err
	}
	env := append(rig.Environment(endpoint), envURL+"="+url, envToken+"="+admin, envStage+"="+stage, envSAMLocal+"="+url)
	if err := goTest(ctx, root, env, "-timeout", "10m", "-run", "TestInContainers|TestUsersRule", "./infra/awstest"); err != nil {
		return err
	}
	return goTest(ctx, root, env, "-p", "1", "-timeout", "20m", "-run", "Conformance|TestLedger", "./shared/ledger/dynamo", "./shared/queue/sqs", "./shared/bus/eventbridge")
}
