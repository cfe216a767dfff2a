// Package bill counts what AWS would charge for and prices it at list price.
//
// A Meter sits in the SDK's HTTP client, reads each request and its answer, and
// adds up billing units by the rules of AWS's own pages. What no SDK call shows
// (requests to the HTTP API, invocations) is added by whoever causes it. It
// measures the code, not an account: retries count, free tiers do not.
package bill

// Kind is something that AWS charges for.
type Kind string

// The kinds, named as on the bills.
const (
	DynamoWrite Kind = "DynamoDB write request units"
	DynamoRead  Kind = "DynamoDB read request units"
	SQSRequest  Kind = "SQS requests"
	BusEvent    Kind = "EventBridge custom events"
	HTTPRequest Kind = "API Gateway HTTP API requests"
	Invocation  Kind = "Lambda requests"
	ComputeGBs  Kind = "Lambda GB-seconds (arm64)"
	LogGB       Kind = "CloudWatch Logs GB ingested"
)

// Kinds lists them in the order of the printed table.
var Kinds = []Kind{DynamoWrite, DynamoRead, SQSRequest, BusEvent, HTTPRequest, Invocation, ComputeGBs, LogGB}

// Price is a list price in US dollars for Per units, us-east-1, on demand, no
// free tier and no volume discount.
type Price struct {
	USD    float64
	Per    float64
	Source string
}

// Of returns the price of n units.
func (p Price) Of(n float64) float64 { return n / p.Per * p.USD }

// ListPrices is the table that docs and tests price by.
var ListPrices = map[Kind]Price{
	DynamoWrite: {0.625, 1e6, "aws.amazon.com/dynamodb/pricing/on-demand: Standard table class"},
	DynamoRead:  {0.125, 1e6, "aws.amazon.com/dynamodb/pricing/on-demand: Standard table class"},
	SQSRequest:  {0.40, 1e6, "aws.amazon.com/sqs/pricing: standard queues, each 64 KB of a request counts as one"},
	BusEvent:    {1.00, 1e6, "aws.amazon.com/eventbridge/pricing: custom events, each 64 KB of an event counts as one"},
	HTTPRequest: {1.00, 1e6, "aws.amazon.com/api-gateway/pricing: HTTP APIs, each 512 KB of a request counts as one"},
	Invocation:  {0.20, 1e6, "aws.amazon.com/lambda/pricing: requests"},
	ComputeGBs:  {0.0000133334, 1, "aws.amazon.com/lambda/pricing: Arm, duration, first tier"},
	LogGB:       {0.50, 1, "aws.amazon.com/cloudwatch/pricing: logs, collect (data ingestion)"},
}

// Alternative is what the same six transitions cost elsewhere, with nothing of
// what is around them (no API, no locks, no audit, no events, no agents).
type Alternative struct {
	Name   string
	USD    float64 // a million operations of six transitions
	How    string
	Source string
}

// Alternatives for comparison.
var Alternatives = []Alternative{
	{"Step Functions Standard", 150, "6 state transitions at US$ 25 a million", "aws.amazon.com/step-functions/pricing"},
	{"Temporal Cloud", 350, "a start and 6 activities, 7 actions at US$ 50 a million (the first tier since 2025)", "docs.temporal.io/cloud/pricing"},
	{"Lambda durable functions", 57.4, "a start and 6 steps, 7 durable operations at US$ 8 a million, 7 requests at US$ 0.20; duration apart", "aws.amazon.com/lambda/pricing"},
}
