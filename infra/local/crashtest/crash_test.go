package crashtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/opsplane/opsplane/agent/executor/sim"
	"github.com/opsplane/opsplane/infra/local"
	"github.com/opsplane/opsplane/shared/operation"
)

const clients = 8

// rounds is how many kills TestCrash does.
func rounds(t *testing.T) int {
	t.Helper()
	text := os.Getenv("OPSPLANE_CRASH_ROUNDS")
	if text == "" {
		return 30
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("OPSPLANE_CRASH_ROUNDS is %q", text)
	}
	return n
}

// seedOf is what the run draws from, so that a failing one can be repeated as
// far as timing allows.
func seedOf(t *testing.T) uint64 {
	t.Helper()
	seed := rand.Uint64() >> 1
	if text := os.Getenv("OPSPLANE_CRASH_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("OPSPLANE_CRASH_SEED is %q", text)
		}
	}
	t.Logf("OPSPLANE_CRASH_SEED=%d", seed)
	return seed
}

// TestCrash kills the plane, agents and all of it at random moments under load,
// and compares what is there at the end with what was acknowledged.
func TestCrash(t *testing.T) {
	n, seed, began := rounds(t), seedOf(t), time.Now()
	p := newPlane(t, append([]string{"--demo", "--log", "warn"}, short.flags()...)...)
	p.start()
	c := p.client()
	l := &load{c: c, targets: targets{nodes: c.things("nodes", 40), devices: c.things("devices", 320),
		deployments: c.things("deployments", 20)}}
	reading, stopReading := context.WithCancel(t.Context())
	defer stopReading()
	r := newReader(l)
	var readers, drivers sync.WaitGroup
	readers.Go(func() { r.run(reading) })
	driving, stopDriving := context.WithCancel(t.Context())
	defer stopDriving()
	for i := range clients {
		drivers.Go(func() { l.run(driving, seed, i) })
	}

	kills := kill(t, p, rand.New(rand.NewPCG(seed, 1<<32)), n)
	time.Sleep(500 * time.Millisecond)
	stopDriving()
	drivers.Wait()
	loaded := time.Since(began)
	c.idle(11*time.Second + short.lease + short.call + time.Minute)
	if !r.caughtUp(time.Minute) {
		t.Error("the reader of events does not come to the end of the streams")
	}
	stopReading()
	readers.Wait()

	p.check(c, l, r)
	p.cordonAll(c, l.targets.nodes)
	p.verify(p.data)
	if code, took := p.term(30 * time.Second); code != 0 {
		t.Errorf("exit code %d after %s", code, took)
	}
	p.verify(p.data)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, text := range l.problems {
		t.Error(text)
	}
	t.Logf("%d rounds (%v) in %s, %s with the checks", n, kills, loaded.Round(time.Second), time.Since(began).Round(time.Second))
}

// kill does the rounds and counts them by what was done to whom. Agents are also
// stopped for longer than their lease; one that the plane's death leaves behind
// wakes up beside its successor.
func kill(t *testing.T, p *plane, r *rand.Rand, n int) map[string]int {
	t.Helper()
	did := map[string]int{}
	var sleepers sync.WaitGroup
	defer sleepers.Wait()
	up := func(i int) {
		if i%6 == 5 {
			p.verify(p.data) // as the kill left it
		} else {
			time.Sleep(time.Duration(r.IntN(300)) * time.Millisecond)
		}
		if r.IntN(6) == 0 { // killed again before it is ready
			did["start"]++
			p.spawn()
			time.Sleep(time.Duration(r.IntN(250)) * time.Millisecond)
			p.killGroup()
		}
		p.start()
	}
	for i := range n {
		time.Sleep(time.Duration(200+r.IntN(1300)) * time.Millisecond)
		pid := p.agentPIDs()[pick(r, local.DemoClusters)]
		switch draw := r.IntN(20); {
		case draw < 7:
			did["plane"]++
			p.kill()
			up(i)
		case draw < 12:
			did["all"]++
			p.killGroup()
			up(i)
		case draw < 17:
			did["agent"]++
			signal(pid, syscall.SIGKILL)
		default:
			did["pause"]++
			signal(pid, syscall.SIGSTOP)
			d := short.lease + short.call + time.Duration(r.IntN(2000))*time.Millisecond
			sleepers.Go(func() {
				time.Sleep(d)
				signal(pid, syscall.SIGCONT)
			})
		}
		if t.Failed() {
			break
		}
	}
	return did
}

// signal signals one of this test's own processes, if it is still there.
func signal(pid int, s syscall.Signal) {
	if alive(pid) {
		_ = syscall.Kill(pid, s)
	}
}

// check compares what is there with what the clients and the reader were told.
func (p *plane) check(c *client, l *load, r *reader) {
	p.t.Helper()
	t := p.t
	all := list[op](c, "/v1/operations")
	byID, byReason := map[string]op{}, map[string][]string{}
	phases, causes := map[operation.Phase]int{}, map[string]int{}
	for _, o := range all {
		if o.Result != nil && o.Result.Cause != nil {
			causes[string(o.Phase)+" "+o.Result.Cause.ErrorCode]++
		}
		if _, twice := byID[o.ID]; twice {
			t.Errorf("operation %s is listed twice", o.ID)
		}
		byID[o.ID] = o
		byReason[o.Reason] = append(byReason[o.Reason], o.ID)
		phases[o.Phase]++
		if !o.Phase.Terminal() || o.FinishedAt == nil {
			t.Errorf("operation %s is %s", o.ID, o.Phase)
		}
	}
	accepted, unsure := 0, 0
	for _, s := range l.sent {
		ids := byReason[s.req.Reason]
		switch {
		case s.accepted && (len(ids) != 1 || ids[0] != s.id):
			t.Errorf("request %s was accepted as %s; there are %v", s.key, s.id, ids)
		case !s.accepted && len(ids) > 0:
			t.Errorf("request %s was refused with %d; there are %v", s.key, s.refused, ids)
		}
		if s.accepted {
			accepted++
			if o := byID[s.id]; s.cancel == http.StatusOK && o.Phase != operation.Cancelled {
				t.Errorf("operation %s was cancelled at once, and is %s", s.id, o.Phase)
			}
		}
		if s.unsure > 0 {
			unsure++
		}
	}
	for reason, ids := range byReason {
		if len(ids) > 1 {
			t.Errorf("%d operations %v of one request: %s", len(ids), ids, reason)
		}
	}
	worst, late := p.lateness(all)
	p.journals(c, all, r.transitions())
	for _, cluster := range local.DemoClusters {
		effects, err := sim.ReadEffects(filepath.Join(p.data, "sim", cluster))
		if err != nil {
			t.Errorf("read what was done in %s: %v", cluster, err)
		}
		if err := sim.CheckOnce(effects); err != nil {
			t.Errorf("cluster %s: %v", cluster, err)
		}
	}
	replays := slices.Clone(l.sent)
	for i, s := range replays {
		if s.accepted && i%max(len(replays)/50, 1) == 0 {
			l.replay(s)
		}
	}
	t.Logf("%d operations of %d requests (%d accepted, %d after lost answers), %v %v, worst lateness %s (%s), %d events, %d failed reads",
		len(all), len(l.sent), accepted, unsure, phases, causes, worst.Round(time.Millisecond), late, len(r.facts), r.errors)
}

// lateness returns by how much the latest operation outlived its deadline, and
// which it was, and holds all to the bound: lease and one call deadline, and what
// the plane was away.
func (p *plane) lateness(all []op) (worst time.Duration, which string) {
	p.t.Helper()
	for _, o := range all {
		if o.FinishedAt == nil {
			continue
		}
		late := o.FinishedAt.Sub(o.Deadline)
		allowed := short.lease + short.call + 3*time.Second // three for the starts and for a busy machine
		if late-p.away(o.Deadline, *o.FinishedAt) > allowed {
			p.t.Errorf("operation %s (%s) is %s, %s after its deadline; the bound is %s", o.ID, o.Type, o.Phase, late, allowed)
		}
		if late > worst {
			worst, which = late, fmt.Sprintf("a %s, %s; the plane was away for %s of it", o.Type, o.Phase, p.away(o.Deadline, *o.FinishedAt).Round(time.Millisecond))
		}
	}
	return worst, which
}

// journals reads every journal: no entry is missing, the chain holds, and each
// transition was told once.
func (p *plane) journals(c *client, all []op, told map[string]map[int64]int) {
	p.t.Helper()
	work := make(chan op)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var problems []string
	for range 4 {
		wg.Go(func() {
			for o := range work {
				found := journalProblems(c, o, told[o.ID])
				mu.Lock()
				problems = append(problems, found...)
				mu.Unlock()
			}
		})
	}
	for _, o := range all {
		work <- o
	}
	close(work)
	wg.Wait()
	for _, text := range problems[:min(len(problems), 30)] {
		p.t.Error(text)
	}
}

func journalProblems(c *client, o op, told map[int64]int) (problems []string) {
	bad := func(format string, args ...any) {
		problems = append(problems, fmt.Sprintf("operation %s: %s", o.ID, fmt.Sprintf(format, args...)))
	}
	a := c.call(http.MethodGet, "/v1/operations/"+o.ID+"/journal?limit=200", nil, "")
	entries, err := decodePage[operation.Entry](a)
	if err != nil {
		bad("%v", err)
		return problems
	}
	at, transitions := operation.Phase(""), 0
	for i, e := range entries {
		if e.Seq != int64(i+1) {
			bad("entry %d is the journal's %d.", e.Seq, i+1)
		}
		if i > 0 && e.Prev != entries[i-1].Hash {
			bad("the chain breaks at entry %d", e.Seq)
		}
		if e.Kind != operation.EntryTransition {
			continue
		}
		transitions++
		if e.From != at {
			bad("entry %d goes from %s, it was %s", e.Seq, e.From, at)
		}
		at = e.To
		if told[e.Seq] != 1 {
			bad("entry %d (%s to %s) was told %d times", e.Seq, e.From, e.To, told[e.Seq])
		}
	}
	if at != o.Phase {
		bad("it is %s, its journal ends with %s", o.Phase, at)
	}
	return problems
}

// cordonAll asks for a cordon of every node: none may be locked.
func (p *plane) cordonAll(c *client, nodes []thing) {
	p.t.Helper()
	var ids []string
	for _, n := range nodes {
		a := c.call(http.MethodPost, "/v1/operations", request{Type: "node.cordon", Target: n.ID, Reason: "is it free"}, "")
		o, err := decode[op](a)
		if a.status != http.StatusAccepted || err != nil {
			p.t.Errorf("node %s cannot be cordoned when all is over: %s", n.Name, a)
			continue
		}
		ids = append(ids, o.ID)
	}
	for _, id := range ids {
		if o := c.finish(id, 2*time.Minute); o.Phase != operation.Succeeded {
			p.t.Errorf("cordon %s of an idle node is %s: %+v", id, o.Phase, o.Result)
		}
	}
	for _, n := range list[struct {
		Name        string `json:"name"`
		Schedulable bool   `json:"schedulable"`
	}](c, "/v1/nodes") {
		if n.Schedulable {
			p.t.Errorf("node %s is cordoned and is listed as schedulable", n.Name)
		}
	}
}
