// Package awsclient gives the AWS engines and the functions their SDK
// configuration: one place for region, credentials, endpoint and HTTP.
//
// On AWS it is the SDK's default, as the environment says. Against an emulator
// (AWS_ENDPOINT_URL is set) it differs in one point, which see.
package awsclient

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
)

// EndpointEnv is the SDK's own variable for an endpoint other than AWS.
const EndpointEnv = "AWS_ENDPOINT_URL"

// Load reads the SDK's configuration from the environment.
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

// Buffered reads each request's body into memory before it is sent. A server on
// loopback may answer before the body's end was read; the SDK then closes the
// body under the transport, which fails the call with "use of closed network
// connection" and sends it twice. AWS itself is never that fast.
func Buffered(c aws.HTTPClient) aws.HTTPClient { return buffered{c} }

type buffered struct{ next aws.HTTPClient }

func (b buffered) Do(r *http.Request) (*http.Response, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return b.next.Do(r)
	}
	body, err := io.ReadAll(r.Body)
	_ = r.Body.Close() // it was read to its end
	if err != nil {
		return nil, fmt.Errorf("read request body: %w", err)
	}
	r = r.Clone(r.Context())
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	r.Body, _ = r.GetBody()
	r.ContentLength = int64(len(body))
	return b.next.Do(r)
}
