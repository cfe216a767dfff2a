package main

import (
	"context"
	"errors"

	"github.com/opsplane/opsplane/infra/awstest/rig"
)

func runOnLocalStack(ctx context.Context, r *rig.Rig, root string) error {
	return errors.New("not yet")
}
