package agentapi

import (
	"log/slog"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/ledger/sqlite"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
	"github.com/opsplane/opsplane/shared/record"
)

// TestRecordFromBefore: a plane whose record is older than what the reporter was told asks
// for a full resend, whoever brought it back and by what means, until one has come, and
// for none after that. Answers that were lost call for none.
func TestRecordFromBefore(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	clock := func() time.Time { return now }
	db := emptyLedger(t, clock)
	s := &Service{Store: &record.Store{Ledger: db, Now: clock, Timing: operation.OneMachine}, Logger: slog.New(slog.DiscardHandler)}
	heard := protocol.HeartbeatAnswer{}
	ask := func(cutOff bool) protocol.HeartbeatAnswer {
		t.Helper()
		now = now.Add(5 * time.Second)
		a, err := s.Heartbeat(t.Context(), "clu_1", protocol.Heartbeat{Name: "a", Boot: "b", CutOff: cutOff, Mark: heard.Mark})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	beat := func() protocol.HeartbeatAnswer { t.Helper(); heard = ask(false); return heard }
	send := func(req protocol.InventoryRequest) {
		t.Helper()
		req.AgentID, req.Boot = heard.AgentID, "b"
		if a, err := s.Inventory(t.Context(), "clu_1", req); err != nil || !a.Reporter {
			t.Fatalf("answered %+v, %v", a, err)
		}
	}
	names := func() (out []string) {
		t.Helper()
		all, err := s.Store.ObjectsByName(t.Context(), operation.KindNode, "rs")
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range all {
			out = append(out, o.UID)
			if o.UID == "1" && o.Node.Schedulable {
				out = append(out, "open")
			}
		}
		return out
	}
	node := func(uid string, rev int64, open bool) protocol.Inventory {
		return protocol.Inventory{Nodes: []protocol.Node{{UID: uid, Name: "rs", Revision: rev, Schedulable: open}}}
	}
	if !beat().FullInventory {
		t.Fatal("a new reporter is not asked for the inventory")
	}
	send(protocol.InventoryRequest{Snapshot: "s1", Part: 0, Objects: node("1", 1, true)})
	send(protocol.InventoryRequest{Snapshot: "s1", Part: 1, Last: true, Objects: node("2", 1, true)})
	for range 3 {
		if beat().FullInventory {
			t.Fatal("the inventory is asked for although it is there")
		}
	}
	for range 3 { // their answers are lost
		if ask(false).FullInventory {
			t.Fatal("the inventory is asked for because an answer was lost")
		}
	}
	beat()

	backup := filepath.Join(t.TempDir(), "backup.db")
	if err := db.Backup(t.Context(), backup); err != nil {
		t.Fatal(err)
	}
	send(protocol.InventoryRequest{Objects: node("1", 2, false), Gone: []string{"node/2"}})
	send(protocol.InventoryRequest{Objects: node("3", 3, true)})
	beat()
	before, err := sqlite.Open(t.Context(), sqlite.Options{Path: backup, Now: clock})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = before.Close() }()
	s.Store.Ledger = before

	heard = ask(true)
	if heard.FullInventory {
		t.Error("an agent that does not see its cluster is asked for the inventory")
	}
	for range 2 {
		if !beat().FullInventory {
			t.Fatal("nobody is asked for what was reported since the record was kept")
		}
	}
	send(protocol.InventoryRequest{Snapshot: "s2", Part: 0, Objects: node("1", 2, false)})
	send(protocol.InventoryRequest{Snapshot: "s2", Part: 1, Last: true, Objects: node("3", 3, true)})
	if got := names(); len(got) != 2 || got[0]+got[1] != "13" && got[0]+got[1] != "31" {
		t.Errorf("the inventory has %v, want nodes 1, which is closed, and 3", got)
	}
	for range 3 {
		if beat().FullInventory {
			t.Fatal("the inventory is asked for again although it has come")
		}
	}
}

// A mark that no plane can have told is refused, and changes nothing.
func TestMarkOutOfRange(t *testing.T) {
	t.Parallel()
	s := &Service{Store: &record.Store{Ledger: emptyLedger(t, time.Now), Now: time.Now, Timing: operation.OneMachine}, Logger: slog.New(slog.DiscardHandler)}
	for _, mark := range []int64{-1, protocol.MaxMark + 1, math.MaxInt64} {
		_, err := s.Heartbeat(t.Context(), "clu_1", protocol.Heartbeat{Name: "a", Boot: "b", Mark: mark})
		if err == nil || !strings.Contains(err.Error(), "/mark") {
			t.Errorf("mark %d: %v", mark, err)
		}
	}
	if a, err := s.Heartbeat(t.Context(), "clu_1", protocol.Heartbeat{Name: "a", Boot: "b"}); err != nil || a.Mark != 1 {
		t.Errorf("then it is told %+v, %v", a, err)
	}
}
