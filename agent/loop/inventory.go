package loop

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/protocol"
)

const (
	deltaWithin    = 200 * time.Millisecond
	inventoryBatch = 500 // objects a call: under the plane's count, and its bytes with large labels
)

// errNotReporter: another agent reports for the cluster.
var errNotReporter = errors.New("another agent reports the inventory")

// inventory collects changes of the fleet until they are sent. Of each object
// only the newest state waits, so it is bounded by the fleet.
type inventory struct {
	mu      sync.Mutex
	changed map[string]any // key -> protocol.Node, Device, Deployment or Component
	gone    map[string]bool
	full    bool
	ring    chan struct{}
}

func newInventory() *inventory {
	return &inventory{changed: map[string]any{}, gone: map[string]bool{}, ring: make(chan struct{}, 1)}
}

func (v *inventory) signal() {
	select {
	case v.ring <- struct{}{}:
	default:
	}
}

// askFull makes the next sending a whole snapshot.
func (v *inventory) askFull() {
	v.mu.Lock()
	v.full = true
	v.mu.Unlock()
	v.signal()
}

func (v *inventory) takeFull() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	full := v.full
	v.full = false
	return full
}

// object is one piece of an inventory, by its key.
type object struct {
	key   string
	value any
}

func objects(in protocol.Inventory) []object {
	var out []object
	for _, n := range in.Nodes {
		out = append(out, object{"node/" + n.UID, n})
	}
	for _, d := range in.Devices {
		out = append(out, object{"device/" + d.UID, d})
	}
	for _, d := range in.Deployments {
		out = append(out, object{"deployment/" + d.UID, d})
	}
	for _, c := range in.Components {
		out = append(out, object{"component/" + c.UID, c})
	}
	return out
}

func assemble(in []object) protocol.Inventory {
	var out protocol.Inventory
	for _, o := range in {
		switch x := o.value.(type) {
		case protocol.Node:
			x.Blockers = append([]protocol.Blocker(nil), x.Blockers...)
			for i := range x.Blockers {
				x.Blockers[i].Detail = detail(x.Blockers[i].Detail)
			}
			out.Nodes = append(out.Nodes, x)
		case protocol.Device:
			x.Detail = detail(x.Detail)
			out.Devices = append(out.Devices, x)
		case protocol.Deployment:
			out.Deployments = append(out.Deployments, x)
		case protocol.Component:
			out.Components = append(out.Components, x)
		}
	}
	return out
}

// add takes a delta in. The loop that watches calls it, so the order is that of
// the world.
func (v *inventory) add(in protocol.Inventory, gone []string) {
	v.mu.Lock()
	for _, o := range objects(in) {
		v.changed[o.key] = o.value
		delete(v.gone, o.key)
	}
	for _, key := range gone {
		delete(v.changed, key)
		v.gone[key] = true
	}
	v.mu.Unlock()
	v.signal()
}

// take removes up to one call's worth.
func (v *inventory) take() (batch []object, gone []string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for key, value := range v.changed {
		if len(batch) == inventoryBatch {
			break
		}
		batch = append(batch, object{key, value})
		delete(v.changed, key)
	}
	for key := range v.gone {
		if len(gone) == inventoryBatch {
			break
		}
		gone = append(gone, key)
		delete(v.gone, key)
	}
	return batch, gone
}

// putBack returns what could not be sent, under what has come since.
func (v *inventory) putBack(batch []object, gone []string) {
	v.mu.Lock()
	for _, o := range batch {
		if _, newer := v.changed[o.key]; !newer && !v.gone[o.key] {
			v.changed[o.key] = o.value
		}
	}
	for _, key := range gone {
		if _, back := v.changed[key]; !back {
			v.gone[key] = true
		}
	}
	v.mu.Unlock()
	v.signal()
}

func (v *inventory) clear() {
	v.mu.Lock()
	defer v.mu.Unlock()
	clear(v.changed)
	clear(v.gone)
}

// reportFleet watches the fleet and reports it for as long as this agent is the
// cluster's reporter.
func (a *Agent) reportFleet(ctx context.Context) {
	reporter := func(answer protocol.HeartbeatAnswer, _ bool) bool { return answer.Reporter }
	for a.session.wait(ctx, reporter) == nil {
		shift, end := context.WithCancel(ctx)
		a.inventory.clear()
		a.inventory.askFull()
		var wg sync.WaitGroup
		wg.Go(func() { a.watch(shift) })
		wg.Go(func() { a.sendInventory(shift) })
		_ = a.session.wait(ctx, func(answer protocol.HeartbeatAnswer, _ bool) bool { return !answer.Reporter })
		end()
		wg.Wait()
	}
}

// watch begins before the snapshot is read, so that no change falls between.
func (a *Agent) watch(ctx context.Context) {
	for tries := 1; ; tries++ {
		err := a.cfg.Executor.Watch(ctx, func(d executor.Delta) {
			a.inventory.add(d.Objects, d.Gone)
			if d.Whole {
				a.inventory.askFull()
			}
			a.events.add(d.Events)
		})
		if ctx.Err() != nil {
			return
		}
		a.log.Warn("the watch on the fleet ended and begins again", slog.Any("err", err))
		if !pause(ctx, backoff(tries, time.Second, 30*time.Second)) {
			return
		}
		a.inventory.askFull() // what was missed
	}
}

func (a *Agent) sendInventory(ctx context.Context) {
	tries := 0
	for {
		var err error
		if a.inventory.takeFull() {
			if err = a.sendSnapshot(ctx); err != nil {
				a.inventory.askFull()
			}
		} else {
			err = a.sendDeltas(ctx)
		}
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, errNotReporter):
			a.session.noReporter()
			return
		case err != nil:
			if tries++; tries == 1 {
				a.log.Warn("inventory was not taken", slog.Any("err", err))
			}
			if !pause(ctx, backoff(tries, 500*time.Millisecond, 10*time.Second)) {
				return
			}
			continue
		}
		tries = 0
		select {
		case <-ctx.Done():
			return
		case <-a.inventory.ring:
		}
		if !pause(ctx, deltaWithin) { // let a burst gather
			return
		}
	}
}

func (a *Agent) sendDeltas(ctx context.Context) error {
	for {
		batch, gone := a.inventory.take()
		if len(batch)+len(gone) == 0 {
			return nil
		}
		err := a.postInventory(ctx, protocol.InventoryRequest{Objects: assemble(batch), Gone: gone})
		if err != nil {
			if refused(err) {
				a.log.Error("the plane refuses a part of the inventory", slog.Any("err", err))
				continue
			}
			a.inventory.putBack(batch, gone)
			return err
		}
	}
}

// sendSnapshot sends everything in parts. One that fails begins anew under
// another id, for a snapshot with a hole would make objects vanish.
func (a *Agent) sendSnapshot(ctx context.Context) error {
	all, err := a.cfg.Executor.Snapshot(ctx)
	if err != nil {
		return err
	}
	rest := objects(all)
	name := strings.TrimPrefix(id.New("snp", a.now()), "snp_")
	for part := 0; ; part++ {
		n := min(len(rest), inventoryBatch)
		req := protocol.InventoryRequest{Snapshot: name, Part: part, Last: n == len(rest), Objects: assemble(rest[:n])}
		rest = rest[n:]
		if req.Last {
			req.Objects.Unread = all.Unread
		}
		if err := a.postInventory(ctx, req); err != nil {
			return err
		}
		if req.Last {
			return nil
		}
	}
}

func (a *Agent) postInventory(ctx context.Context, req protocol.InventoryRequest) error {
	req.AgentID, req.Boot = a.session.get().AgentID, a.boot
	var answer protocol.InventoryAnswer
	if err := a.api.post(ctx, "/v1/agent/inventory", "", req, &answer); err != nil {
		return err
	}
	if !answer.Reporter {
		return errNotReporter
	}
	o := req.Objects
	a.metrics.Objects.Add(int64(len(o.Nodes) + len(o.Devices) + len(o.Deployments) + len(o.Components)))
	if req.Last {
		a.metrics.Snapshots.Add(1)
	}
	if answer.FullInventory && !req.Last && req.Snapshot == "" {
		a.inventory.askFull()
	}
	return nil
}
