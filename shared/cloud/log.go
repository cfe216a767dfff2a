package cloud

import (
	"context"
	"io"
	"log/slog"
	"os"

	"github.com/aws/aws-lambda-go/lambdacontext"
)

// NewLogger returns a logger of JSON lines, which CloudWatch Logs takes apart by
// itself. Each line carries the stage and the function, and those logged with an
// invocation's context its AWS request id, by which CloudWatch Logs Insights
// finds the rest of it.
func NewLogger(w io.Writer, c Config) *slog.Logger {
	h := slog.NewJSONHandler(w, &slog.HandlerOptions{Level: c.LogLevel})
	return slog.New(invocation{h}).With("stage", c.Stage, "function", FunctionName())
}

// FunctionName is the function's name as Lambda tells it (AWS Lambda Developer
// Guide, "Using Lambda environment variables"); empty elsewhere.
func FunctionName() string { return os.Getenv("AWS_LAMBDA_FUNCTION_NAME") }

// RequestID is the AWS request id of the invocation; empty outside of one.
func RequestID(ctx context.Context) string {
	if lc, ok := lambdacontext.FromContext(ctx); ok {
		return lc.AwsRequestID
	}
	return ""
}

// invocation adds the invocation's id to what is logged with its context.
type invocation struct{ slog.Handler }

// Handle implements slog.Handler.
func (h invocation) Handle(ctx context.Context, r slog.Record) error {
	if id := RequestID(ctx); id != "" {
		r.AddAttrs(slog.String("aws_request_id", id))
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h invocation) WithAttrs(as []slog.Attr) slog.Handler {
	return invocation{h.Handler.WithAttrs(as)}
}

// WithGroup implements slog.Handler.
func (h invocation) WithGroup(name string) slog.Handler { return invocation{h.Handler.WithGroup(name)} }
