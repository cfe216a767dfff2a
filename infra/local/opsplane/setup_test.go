package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/opsplane/opsplane/infra/local"
	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/protocol"
	"github.com/opsplane/opsplane/shared/record"
)

// asProgram has the test's binary be the program itself, for tests that kill it.
const asProgram = "OPSPLANE_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// site is an engine over a data folder, with its API served; its workers do not
// run, so that operations stay as they are.
type site struct {
	*local.Engine
	data, url, tokenFile string
	cluster              string
}

func newSite(t *testing.T) *site {
	t.Helper()
	ctx := t.Context()
	s := &site{data: filepath.Join(t.TempDir(), "data")}
	var err error
	s.Engine, err = local.New(ctx, local.Options{Data: s.data, Addr: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler)})
	no(t, err)
	t.Cleanup(func() { s.close(t) })
	_, _, err = s.AdminToken(ctx)
	no(t, err)
	s.tokenFile = filepath.Join(s.data, "admin.token")
	srv := httptest.NewServer(s.Handler())
	t.Cleanup(srv.Close)
	s.url = srv.URL
	made, err := s.Registry.Create(ctx, local.PlaneCall(), "small")
	no(t, err)
	s.cluster = made.Cluster.ID
	var inv protocol.Inventory
	for i := range 3 {
		inv.Nodes = append(inv.Nodes, protocol.Node{UID: fmt.Sprint("uid-", i), Name: fmt.Sprint("n", i), Revision: 1, Schedulable: true})
	}
	objects, _ := fleet.Objects(s.cluster, &inv, s.Store.Now())
	ws, err := s.Store.MergeObjects(ctx, objects)
	no(t, err)
	no(t, s.Store.Ledger.Commit(ctx, ws...))
	return s
}

// close gives the data folder back, once.
func (s *site) close(t *testing.T) {
	t.Helper()
	if s.Engine != nil {
		no(t, s.Engine.Close())
		s.Engine = nil
	}
}

// cordon admits an operation.
func (s *site) cordon(t *testing.T, node string) (op string) {
	t.Helper()
	a, err := s.Admission.Admit(context.Background(), local.PlaneCall(), record.Encode(map[string]any{"type": "node.cordon", "target": "node:" + node, "reason": "a test"}))
	no(t, err)
	return a.Operation.Spec.ID
}

func no(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
