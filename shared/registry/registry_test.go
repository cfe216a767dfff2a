package registry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/admission"
	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/ledger/sqlite"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
	"github.com/opsplane/opsplane/shared/queue"
	"github.com/opsplane/opsplane/shared/record"
)

// queues counts the queues that there are, and fails when told to.
type queues struct {
	queue.Admin
	mu   sync.Mutex
	have map[string]bool
	err  error
}

func (q *queues) Ensure(_ context.Context, name string) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.have[name] = true
	return q.err
}

func (q *queues) Remove(_ context.Context, name string) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err == nil {
		delete(q.have, name)
	}
	return q.err
}

func setup(t *testing.T) (*Service, *queues) {
	t.Helper()
	db, err := sqlite.Open(t.Context(), sqlite.Options{Path: filepath.Join(t.TempDir(), "l.db"), Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	t.Cleanup(func() { must(t, db.Close()) })
	q := &queues{have: map[string]bool{}}
	return &Service{Store: &record.Store{Ledger: db, Now: time.Now, Timing: operation.OneMachine}, Tokens: auth.NewStore(db, nil), Queues: q}, q
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var admin = admission.Call{Caller: admission.Caller{Actor: operation.Actor{ID: "tok_admin", Kind: "token"}}, Method: "POST", Path: "/v1/clusters"}

func TestOneNameManyAtOnce(t *testing.T) {
	t.Parallel()
	s, q := setup(t)
	var mu sync.Mutex
	made, wg := 0, sync.WaitGroup{}
	for range 8 {
		wg.Go(func() {
			_, err := s.Create(context.Background(), admin, "east")
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				made++
			} else if r, ok := errors.AsType[*operation.Refusal](err); !ok || r.ErrorCode != "name_taken" {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if made != 1 || len(q.have) != 1 {
		t.Errorf("%d clusters, %d queues", made, len(q.have))
	}
}

func TestNoQueueNoCluster(t *testing.T) {
	t.Parallel()
	s, q := setup(t)
	q.err = queue.ErrUnavailable
	if _, err := s.Create(t.Context(), admin, "east"); !errors.Is(err, queue.ErrUnavailable) {
		t.Error(err)
	}
	if _, err := s.Find(t.Context(), admin, "east"); err == nil {
		t.Error("a cluster without a queue")
	}
}

// unsure is a ledger that loses the answer of its next commit, which it applied
// or not; applied and yet unread: nothing can be read afterwards either.
type unsure struct {
	ledger.Ledger
	applies, unread bool
	lost            bool
}

func (l *unsure) Commit(ctx context.Context, ws ...ledger.Write) error {
	if l.lost {
		return l.Ledger.Commit(ctx, ws...)
	}
	l.lost = true
	if l.applies {
		if err := l.Ledger.Commit(ctx, ws...); err != nil {
			return err
		}
	}
	return fmt.Errorf("commit: %w", ledger.ErrUnknown)
}

func (l *unsure) Get(ctx context.Context, k ledger.Key) (ledger.Item, error) {
	if l.lost && l.unread {
		return ledger.Item{}, ledger.ErrUnavailable
	}
	return l.Ledger.Get(ctx, k)
}

// TestCreateWhoseAnswerIsLost: a cluster that may have come to be keeps its
// queue, and its token is told when it can be.
func TestCreateWhoseAnswerIsLost(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		applies, unread bool
		err             error
	}{
		"applied":     {applies: true},
		"not applied": {err: ledger.ErrUnknown},
		"not to tell": {applies: true, unread: true, err: ledger.ErrUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, q := setup(t)
			l := &unsure{Ledger: s.Store.Ledger, applies: tt.applies, unread: tt.unread}
			s.Store.Ledger = l
			made, err := s.Create(t.Context(), admin, "east")
			if !errors.Is(err, tt.err) || (tt.err == nil) != (made.Secret != "") {
				t.Fatalf("%v, a secret: %t", err, made.Secret != "")
			}
			l.unread = false
			if c, err := s.Find(t.Context(), admin, "east"); tt.applies && (err != nil || !q.have[c.Queue]) {
				t.Errorf("cluster %+v, %v, queues %v", c, err, q.have)
			}
			if _, err := s.Create(t.Context(), admin, "east"); (err == nil) == tt.applies {
				t.Errorf("once more: %v", err)
			}
		})
	}
}

func TestDeleteThatBrokeOffGoesOn(t *testing.T) {
	t.Parallel()
	s, q := setup(t)
	c, err := s.Create(t.Context(), admin, "east")
	must(t, err)
	var inv protocol.Inventory
	for i := range 150 { // more than one commit takes
		inv.Nodes = append(inv.Nodes, protocol.Node{UID: fmt.Sprint(i), Name: fmt.Sprint("n", i), Revision: 1})
	}
	objects, _ := fleet.Objects(c.Cluster.ID, &inv, time.Now())
	for len(objects) > 0 {
		n := min(60, len(objects))
		ws, err := s.Store.MergeObjects(t.Context(), objects[:n])
		must(t, err)
		must(t, s.Store.Ledger.Commit(t.Context(), ws...))
		objects = objects[n:]
	}
	agent := fleet.Agent{ID: fleet.AgentID(c.Cluster.ID, "a"), Cluster: c.Cluster.ID, LastSeen: time.Now()}
	must(t, s.Store.Ledger.Commit(t.Context(), ledger.Write{Item: s.Store.AgentItem(&agent)}))
	more, _, err := s.CreateToken(t.Context(), admin, TokenInput{Name: "second", Role: "agent", Clusters: []string{"east"}})
	must(t, err)
	q.err = queue.ErrUnavailable
	if err := s.Delete(t.Context(), admin, "east"); !errors.Is(err, queue.ErrUnavailable) {
		t.Fatal(err)
	}
	if found, err := s.Find(t.Context(), admin, "east"); err != nil || !found.Deleting {
		t.Errorf("%+v %v", found, err)
	}
	if _, err := s.RotateToken(t.Context(), admin, "east"); err == nil {
		t.Error("a token for what is being deleted")
	}
	q.err = nil
	must(t, s.Delete(t.Context(), admin, "east"))
	for _, id := range []string{c.Token.ID, more.ID} {
		if tok, err := s.Tokens.Get(t.Context(), id); err != nil || tok.Ended(time.Now()) != auth.ReasonRevoked {
			t.Errorf("%s: %+v %v", id, tok, err)
		}
	}
	if p, err := s.Store.Ledger.Query(t.Context(), ledger.Query{PK: record.ClusterPK(c.Cluster.ID)}); err != nil || len(p.Items) > 0 || len(q.have) > 0 {
		t.Errorf("left: %d items, %d queues, %v", len(p.Items), len(q.have), err)
	}
	if left, _, err := s.Store.Objects(t.Context(), operation.KindNode, "", record.Span{}); err != nil || len(left) > 0 {
		t.Errorf("left: %d nodes, %v", len(left), err)
	}
}
