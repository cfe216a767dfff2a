package main

import (
	"context"
	"fmt"
	"os"

	"github.com/opsplane/opsplane/infra/awstest/rig"
	"github.com/opsplane/opsplane/infra/local"
	"github.com/opsplane/opsplane/shared/version"
)

// stage is the name of the deployment that people look at.
const stage = "local"

// runDemo deploys and keeps a simulated fleet until ctx ends.
func runDemo(ctx context.Context, r *rig.Rig, addr string) error {
	d, err := deploy(ctx, r, stage, addr)
	if err != nil {
		return err
	}
	fmt.Printf("\nOpsplane %s is up on a local AWS.\n\n  URL    %s\n  token  %s\n         (an administrator's; it ends with this process)\n  AWS    %s (any credentials, region %s), stack opsplane-%s\n",
		version.Version, d.url, d.admin, d.stack.Endpoint, rig.Region, stage)
	local.Commands(os.Stdout, d.url, d.admin)
	fmt.Print("\nCtrl-C ends it, and nothing is kept.\n")
	<-ctx.Done()
	return nil
}

// deployment is the template in a local AWS with a simulated fleet.
type deployment struct {
	stack rig.Stack
	url   string // of its API
	admin string // an administrator's token
}

// deploy starts a local AWS, deploys into it and brings the fleet; other parts are
// made ready beside it.
func deploy(ctx context.Context, r *rig.Rig, stage, addr string, beside ...func(context.Context) error) (d deployment, err error) {
	var endpoint string
	parts := append(beside,
		timed(r, "MiniStack", func(ctx context.Context) (err error) { endpoint, err = r.MiniStack(ctx); return err }),
		timed(r, "sam build", r.Build),
		timed(r, "the agent", r.BuildAgent))
	if err := together(ctx, parts...); err != nil {
		return d, err
	}
	if err := timed(r, "sam deploy", func(ctx context.Context) (err error) { d.stack, err = r.Deploy(ctx, endpoint, stage); return err })(ctx); err != nil {
		return d, err
	}
	if d.url, err = d.stack.Serve(ctx, addr); err != nil {
		return d, err
	}
	d.admin, err = fleet(ctx, r, d.stack, d.url)
	return d, err
}

// fleet makes an administrator's token, registers the demo's clusters and starts
// an agent for each.
func fleet(ctx context.Context, r *rig.Rig, s rig.Stack, url string) (admin string, err error) {
	if admin, err = s.AdminToken(ctx); err != nil {
		return "", err
	}
	c := rig.Client{URL: url, Token: admin}
	var clusters []rig.Cluster
	for _, name := range local.DemoClusters {
		cl, err := c.Register(ctx, name)
		if err != nil {
			return "", err
		}
		clusters = append(clusters, cl)
	}
	return admin, timed(r, "three agents", func(ctx context.Context) error { return r.Agents(ctx, c, s.Endpoint, clusters) })(ctx)
}
