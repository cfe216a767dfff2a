package rig

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// MiniStack starts the whole local AWS on a free port and returns its endpoint.
// The functions that it runs inherit its environment, so that their SDK talks to
// it without a switch of theirs.
func (r *Rig) MiniStack(ctx context.Context) (endpoint string, err error) {
	if err := r.install(ctx, ministack); err != nil {
		return "", err
	}
	port, err := FreePort()
	if err != nil {
		return "", err
	}
	endpoint = loopback(port)
	// It unpacks the functions' code where temporary files go.
	env := append(Environment(endpoint), "BIND_HOST=127.0.0.1", "GATEWAY_PORT="+strconv.Itoa(port), "TMPDIR="+r.state)
	c, err := r.start("ministack", r.state, env, r.bin(ministack, "ministack"))
	if err != nil {
		return "", err
	}
	return endpoint, waitHTTP(ctx, endpoint+"/_ministack/health", time.Minute, c)
}

// LocalStack starts SQS and EventBridge a second time, on a free port. Its
// DynamoDB does not run outside its image.
func (r *Rig) LocalStack(ctx context.Context) (endpoint string, err error) {
	if err := r.install(ctx, localstack); err != nil {
		return "", err
	}
	port, err := FreePort()
	if err != nil {
		return "", err
	}
	data := filepath.Join(r.state, "localstack")
	if err := os.MkdirAll(data, 0o755); err != nil {
		return "", fmt.Errorf("start localstack: %w", err)
	}
	endpoint = loopback(port)
	env := append(Environment(endpoint), "DNS_ADDRESS=0", "GATEWAY_LISTEN="+net.JoinHostPort("127.0.0.1", strconv.Itoa(port)),
		"DISABLE_EVENTS=1", "SKIP_SSL_CERT_DOWNLOAD=1", "EAGER_SERVICE_LOADING=0", "FILESYSTEM_ROOT="+data)
	c, err := r.start("localstack", r.state, env, r.bin(localstack, "python"), "-m", "localstack.runtime.main")
	if err != nil {
		return "", err
	}
	return endpoint, waitHTTP(ctx, endpoint+"/_localstack/health", 90*time.Second, c)
}

// LocalStackImage is LocalStack's own image, of the version whose packages are
// installed elsewhere: with it comes its DynamoDB.
const LocalStackImage = "localstack/localstack:4.14.0"

// LocalStackInDocker runs LocalStackImage on a free port. It starts no daemon and
// pulls nothing.
func (r *Rig) LocalStackInDocker(ctx context.Context) (endpoint string, err error) {
	const needs = "this needs Docker and the image " + LocalStackImage + ": "
	if !r.dockerAnswers(ctx) {
		return "", errors.New(needs + "no Docker daemon answers")
	}
	if err := r.run(ctx, nil, "docker", "image", "inspect", LocalStackImage); err != nil {
		return "", errors.New(needs + "there is no such image (docker pull " + LocalStackImage + ")")
	}
	port, err := FreePort()
	if err != nil {
		return "", err
	}
	endpoint = loopback(port)
	c, err := r.start("localstack", r.state, os.Environ(), "docker", "run", "--rm", "--publish", fmt.Sprintf("127.0.0.1:%d:4566", port),
		"--env", "SERVICES=dynamodb,dynamodbstreams,sqs,events", "--env", "DISABLE_EVENTS=1", LocalStackImage)
	if err != nil {
		return "", err
	}
	return endpoint, waitHTTP(ctx, endpoint+"/_localstack/health", 2*time.Minute, c)
}
