package env

import (
	"strings"
	"testing"
)

// TestLoad: the environment's region, credentials and endpoint, and all that is
// missing at once.
func TestLoad(t *testing.T) {
	t.Setenv("AWS_REGION", "eu-west-1")
	t.Setenv("AWS_ACCESS_KEY_ID", "key")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	t.Setenv("AWS_SESSION_TOKEN", "token")
	t.Setenv(Endpoint, "http://127.0.0.1:4566")
	c, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	have, err := c.Credentials.Retrieve(t.Context())
	if err != nil || have.AccessKeyID != "key" || have.SecretAccessKey != "secret" || have.SessionToken != "token" {
		t.Errorf("credentials of %s, %v", have.AccessKeyID, err)
	}
	if c.Region != "eu-west-1" || c.BaseEndpoint == nil || *c.BaseEndpoint != "http://127.0.0.1:4566" || c.HTTPClient == nil {
		t.Errorf("region %s, endpoint %v", c.Region, c.BaseEndpoint)
	}
	t.Setenv(Endpoint, "")
	if c, err = Load(); err != nil || c.BaseEndpoint != nil || c.HTTPClient != nil {
		t.Errorf("on AWS: %v, %v", c.BaseEndpoint, err)
	}
	t.Setenv("AWS_REGION", "")
	t.Setenv("AWS_ACCESS_KEY_ID", "")
	_, err = Load()
	if err == nil || !strings.Contains(err.Error(), "AWS_REGION") || !strings.Contains(err.Error(), "AWS_ACCESS_KEY_ID") {
		t.Errorf("without them: %v", err)
	}
}
