package gateway

import (
	"strings"
	"testing"

	"github.com/opsplane/opsplane/shared/problem"
)

// headBytes is the longest request line with header values that the gateway
// passes on (API Gateway Developer Guide, "Quotas for configuring and running an
// HTTP API").
const headBytes = 10_240

// TestHeadAtTheGatewaysLimit: whatever is as long as may come is answered by the
// limit of the field that is too long, and fields that keep to theirs fit all
// together.
func TestHeadAtTheGatewaysLimit(t *testing.T) {
	t.Parallel()
	d := deploy(t)
	// The longest cursor, key and correlation id, and a token of an issuer with many
	// groups, at once.
	longest := "/v1/operations?cursor=" + strings.Repeat("c", 4096)
	key, correlation := "Idempotency-Key: "+strings.Repeat("k", 255), "X-Correlation-ID: "+strings.Repeat("x", 128)
	if n := len("GET "+longest+" HTTP/1.1") + len(key) + len(correlation) + len("Authorization: Bearer ") + 4096; n > headBytes {
		t.Errorf("what we take has %d bytes, the gateway passes on %d", n, headBytes)
	}
	d.want(d.do("viewer", "GET", longest, "", key, correlation), 422, problem.InvalidCursor) // none of ours

	filled := func(s string) string { return s + strings.Repeat("z", headBytes-len("GET  HTTP/1.1")-len(s)) }
	d.want(d.do("viewer", "GET", filled("/v1/operations/"), ""), 404, problem.NotFound)
	d.want(d.do("viewer", "GET", filled("/v1/events?cursor="), ""), 422, problem.InvalidCursor)
	d.want(d.do("viewer", "GET", filled("/v1/events?subject="), ""), 422, problem.Invalid)
	d.want(d.do("viewer", "GET", "/v1/operations?phase=pending"+strings.Repeat("&phase=pending", 700), ""), 200, "")
	d.want(d.do("admin", "POST", "/v1/operations", `{}`, filled("Idempotency-Key: ")), 422, problem.Invalid)
	d.want(d.do(filled(""), "GET", "/v1/clusters", ""), 403, "")
	w := d.want(d.do("viewer", "GET", "/v1/clusters", "", filled("X-Correlation-ID: ")), 200, "")
	if id := w.Header().Get("X-Correlation-Id"); len(id) > 128 {
		t.Errorf("a correlation id of %d bytes was taken", len(id))
	}
}
