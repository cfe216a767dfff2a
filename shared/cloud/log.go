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
// finds the rest of it, and what else the attributes given know of the context.
func NewLogger(w io.Writer, c Config, attrs ...func(context.Context) slog.Attr) *slog.Logger {
	h := slog.NewJSONHandler(w, &slog.HandlerOptions{Level: c.LogLevel})
	return slog.New(invocation{h, attrs}).With("stage", c.Stage, "function", FunctionName())
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

// invocation adds to what is logged what is known by its context.
type invocation struct {
	slog.Handler
	attrs []func(context.Context) slog.Attr
}

// Handle implements slog.Handler.
func (h invocation) Handle(ctx context.Context, r slog.Record) error {
	if id := RequestID(ctx); id != "" {
		r.AddAttrs(slog.String("aws_request_id", id))
	}
	for _, of := range h.attrs {
		if a := of(ctx); !a.Equal(slog.Attr{}) {
			r.AddAttrs(a)
		}
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h invocation) WithAttrs(as []slog.Attr) slog.Handler {
	return invocation{h.Handler.WithAttrs(as), h.attrs}
}

// WithGroup implements slog.Handler.
func (h invocation) WithGroup(name string) slog.Handler {
	return invocation{h.Handler.WithGroup(name), h.attrs}
}
