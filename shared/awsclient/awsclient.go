// Package awsclient gives the AWS engines and the functions their SDK
// configuration: one place for region, credentials, endpoint and HTTP.
//
// On AWS it is the SDK's default, as the environment says. Against an emulator
// (AWS_ENDPOINT_URL is set) it differs in one point, which see.
package awsclient

import (
	"context"
	"fmt"
	"os"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"

	"github.com/opsplane/opsplane/shared/awsclient/env"
)

// EndpointEnv is the SDK's own variable for an endpoint other than AWS.
const EndpointEnv = env.Endpoint

// Load reads the SDK's configuration from all places where the SDK looks. A
// function needs only its environment: see package env.
func Load(ctx context.Context, with ...func(*config.LoadOptions) error) (aws.Config, error) {
	c, err := config.LoadDefaultConfig(ctx, with...)
	if err != nil {
		return c, fmt.Errorf("load AWS configuration: %w", err)
	}
	if os.Getenv(EndpointEnv) != "" {
		// Afterwards: a CA bundle of the environment goes only into the SDK's own,
		// which without one is made later and not here.
		if c.HTTPClient == nil {
			c.HTTPClient = awshttp.NewBuildableClient()
		}
		c.HTTPClient = Buffered(c.HTTPClient)
	}
	return c, nil
}

// Buffered reads each request's body into memory before it is sent: see
// env.Buffered.
func Buffered(c aws.HTTPClient) aws.HTTPClient { return env.Buffered(c) }
