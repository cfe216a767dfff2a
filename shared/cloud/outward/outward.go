// Package outward opens the deployment's event bus, for the two functions that
// publish: EventBridge's client is linked into no other.
package outward

import (
	awseventbridge "github.com/aws/aws-sdk-go-v2/service/eventbridge"

	"github.com/opsplane/opsplane/shared/bus/eventbridge"
	"github.com/opsplane/opsplane/shared/cloud"
)

// Bus publishes to the deployment's event bus.
func Bus(p *cloud.Plane) *eventbridge.Bus {
	return eventbridge.New(eventbridge.Options{Client: awseventbridge.NewFromConfig(p.AWS()), Bus: p.Config.Bus, Logger: p.Log})
}
