// Package gateway stands between Amazon API Gateway and net/http: it turns the
// events of an HTTP API (payload format 2.0) into requests for a handler and its
// answers back, and is the HTTP API's Lambda authorizer.
//
// The way of a request on AWS: the gateway calls the authorizer, which only says
// who it is; it keeps that answer for AuthorizerTTL and puts it into the event of
// the function; the function's handler (package httpapi) decides what they may.
//
// What the gateway does by itself, before any function is called, and how it
// looks from outside:
//
//   - no Authorization header on a route with the authorizer: 401, and 403 when
//     the authorizer does not know the credential. Both are plain JSON
//     ({"message":"Unauthorized"}, {"message":"Forbidden"}), no problems.
//   - more than 10,240 bytes of request line and headers, more than 10 MB of body:
//     refused (API Gateway Developer Guide, "Quotas for configuring and running
//     an HTTP API"). A body over what Lambda takes, 6 MB (AWS Lambda Developer
//     Guide, "Lambda quotas"): 413.
//   - no answer within 30 seconds (same page, "Maximum integration timeout"): 503.
//   - several fields of one name are joined by commas ("Create AWS Lambda proxy
//     integrations for HTTP APIs in API Gateway", "Payload format differences"):
//     a handler cannot tell "a: 1" and "a: 2" from "a: 1,2", which RFC 9110
//     (section 5.3) lets every intermediary do.
//   - the path is percent-decoded, so that %2F has become a slash. AWS does not
//     document it; observed are a%2Fb as "a/b" and, alone, %25 left as it is.
package gateway

import (
	"time"

	"github.com/opsplane/opsplane/shared/auth"
)

// Limits of what stands around a function.
const (
	// AuthorizerTTL is how long the gateway keeps an authorizer's answer for a
	// credential; template.yaml sets the same.
	AuthorizerTTL = 30 * time.Second
	// RevokedWithin is the longest time that a token is still accepted on AWS
	// after it was revoked or has expired: the authorizer may have read it
	// auth.RevokedWithin before, and the gateway keeps what it said. A request
	// that is being answered then is not cut off.
	RevokedWithin = AuthorizerTTL + auth.RevokedWithin
	// MaxWait is the longest that a request may wait for something to happen. It
	// leaves the rest of the gateway's 30 seconds to a cold start and the answer.
	MaxWait = 25 * time.Second
	// Budget is the longest that a handler may take in all.
	Budget = 28 * time.Second
	// MaxAnswerBytes bounds an answer as Lambda counts it, encoded as JSON (AWS
	// Lambda Developer Guide, "Lambda quotas": 6 MB a response).
	MaxAnswerBytes = 6 << 20
)

// PreflightRoute takes a browser's preflights, which come without a credential;
// template.yaml has it where web origins may call. The gateway puts the headers of
// its CORS configuration to whatever is answered, and a browser wants a status of
// success with them (API Gateway Developer Guide, "Configure CORS for HTTP APIs").
const PreflightRoute = "OPTIONS /{proxy+}"

// endMargin is what is left of a function's own time when its handler's context
// ends, to answer that it did.
const endMargin = 500 * time.Millisecond
