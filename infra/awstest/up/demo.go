package main

import (
	"context"
	"fmt"
	"os"

	"github.com/opsplane/opsplane/infra/awstest/rig"
	"github.com/opsplane/opsplane/infra/local"
)

// stage is the name of the deployment that people look at.
const stage = "local"

// runDemo deploys and keeps a simulated fleet until ctx ends.
func runDemo(ctx context.Context, r *rig.Rig, addr string) error {
	var endpoint string
	err := together(ctx,
		timed(r, "MiniStack", func(ctx context.Context) (err error) { endpoint, err = r.MiniStack(ctx); return err }),
		timed(r, "sam build", r.Build),
		timed(r, "the agent", r.BuildAgent))
	if err != nil {
		return err
	}
	var s rig.Stack
	if err := timed(r, "sam deploy", func(ctx context.Context) (err error) { s, err = r.Deploy(ctx, endpoint, stage); return err })(ctx); err != nil {
		return err
	}
	url, err := s.Serve(ctx, addr)
	if err != nil {
		return err
	}
	admin, err := fleet(ctx, r, s, url)
	if err != nil {
		return err
	}
	fmt.Printf("\nOpsplane %s is up on a local AWS.\n\n  URL    %s\n  token  %s\n         (an administrator's; it ends with this process)\n  AWS    %s (any credentials, region %s), stack opsplane-%s\n",
		local.Version, url, admin, endpoint, rig.Region, stage)
	local.Commands(os.Stdout, url, admin)
	fmt.Print("\nCtrl-C ends it, and nothing is kept.\n")
	<-ctx.Done()
	return nil
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
