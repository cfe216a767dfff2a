package rig

import (
	"context"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/awsclient"
	"github.com/opsplane/opsplane/shared/ledger/dynamo"
	"github.com/opsplane/opsplane/shared/record"
)

// Configuration is the SDK's for a local AWS at the endpoint, whatever the
// environment says.
func Configuration(ctx context.Context, endpoint string) (aws.Config, error) {
	return awsclient.Load(ctx, config.WithBaseEndpoint(endpoint), config.WithRegion(Region),
		config.WithCredentialsProvider(credentials.NewStaticCredentialsProvider("test", "test", "")))
}

// AdminToken makes an administrator's token in the stack's table, as the first
// one of a deployment is made: beside the API, which asks for one.
func (s Stack) AdminToken(ctx context.Context) (string, error) {
	c, err := Configuration(ctx, s.Endpoint)
	if err != nil {
		return "", err
	}
	db, err := dynamo.New(dynamo.Options{Client: dynamodb.NewFromConfig(c), Table: s.Table, Sharded: record.BusyPartitions()})
	if err != nil {
		return "", fmt.Errorf("open ledger: %w", err)
	}
	_, token, err := auth.NewStore(db, time.Now).Create(ctx, auth.TokenSpec{Name: "first administrator", Role: auth.Admin, Force: true, CreatedBy: "opsplane"})
	if err != nil {
		return "", fmt.Errorf("create admin token: %w", err)
	}
	return token, nil
}
