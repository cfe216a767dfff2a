package bill

import (
	"context"
	"math"
	"sync"
)

// What a call takes on AWS, in milliseconds, for the duration that an invocation
// is billed by: round figures of calls within a region, which no emulator shows.
// The calls of an invocation are taken one after the other.
var dynamoLatency = map[string]float64{"GetItem": 4, "BatchGetItem": 6, "Query": 6, "PutItem": 6, "UpdateItem": 6, "DeleteItem": 6, "TransactWriteItems": 15}

const (
	sqsLatency = 8.0
	busLatency = 12.0
	ownTime    = 2.0 // the function's own work
	// memoryGB is the functions' memory in template.yaml.
	memoryGB = 0.5
)

type invocationKey struct{}

// invocation adds up how long a function would have run.
type invocation struct {
	mu sync.Mutex
	ms float64
}

func (i *invocation) add(ms float64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.ms += ms
}

// Invoke counts an invocation of a function: the request and the duration by the
// AWS calls that f makes with its context.
func (m *Meter) Invoke(ctx context.Context, f func(context.Context)) {
	inv := &invocation{ms: ownTime}
	f(context.WithValue(ctx, invocationKey{}, inv))
	inv.mu.Lock()
	defer inv.mu.Unlock()
	m.Add(Invocation, 1)
	m.Add(ComputeGBs, math.Ceil(inv.ms)/1000*memoryGB)
}
