package record

import (
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
)

func TestKind(t *testing.T) {
	t.Parallel()
	at := time.Unix(1_700_000_000, 0)
	for want, k := range map[string]ledger.Key{
		KindOperation: StateKey("op_1"), "spec": specKey("op_1"), "journal": journalKey("op_1", 1), "published": pubKey("op_1"), "late": lateKey("op_1"),
		"children": kidsKey("op_1", 0), "slots": slotsKey("op_1"), "commands": CommandWrite("op_1", 1, 1, 0, nil).Item.Key,
		"inventory": InventoryKey("nod_1"), "lock": LockKey("nod_1"), "reference": refKey("nod_1", "op_1", at),
		"idempotency_key": idemKey("p", "POST", "/", "k"), KindCluster: ClusterKey("clu_1"), "cluster_name": ClusterNameKey("alpha"),
		KindAgent: AgentKey("clu_1", "agt_1"), "reporter": ReporterKey("clu_1"), "agent_events": AgentEventsKey("clu_1", "agt_1"),
		KindSnapshot: SnapshotKey("clu_1", "s", 1), KindStream: StreamHeadKey("clu_1"), "events": StreamRunKey("clu_1", 1),
		KindBusPosition: StreamBusKey("clu_1"), "details_position": StreamDetailsKey("clu_1"), KindFeedPosition: FeedKey("dispatch"), "audit": AuditKey(at, "x"),
		"dead_letter": DeadLetterKey("d"), "manual_change": ChangeKey("c"), KindPreview: PreviewKey("p"), "cursor": CursorKey("c"),
		"history": historyKey, "former_cluster": FormerKey("clu_1"), KindImport: ImportKey, KindToken: {PK: "token#tok_1", SK: "token"}, KindTokenUse: {PK: "token#tok_1", SK: "used"},
		"later": {PK: "later#1", SK: "x"},
	} {
		if got := Kind(k); got != want {
			t.Errorf("kind of %s is %q, want %q", k, got, want)
		}
	}
}
