package record

import (
	"strings"

	"github.com/opsplane/opsplane/shared/ledger"
)

// kinds names the items of each partition's prefix, by their whole sort key or
// its part up to the first "#".
var kinds = map[string]map[string]string{
	"op":        {skState: "operation", skSpec: "spec", "j": "journal", "cmd": "commands", skPub: "published", skLate: "late", "kids": "children", "slots": "slots"},
	"res":       {"inv": "inventory", "lock": "lock", "ref": "reference"},
	"idem":      {"idem": "idempotency_key"},
	"clu":       {"cluster": "cluster", "agent": "agent", "reporter": "reporter", "events": "agent_events", "snap": "snapshot"},
	"name":      {"cluster": "cluster_name", "rule": "rule_name", "receiver": "receiver_name"},
	"str":       {"head": "stream", "ev": "events", "bus": "bus_position", "details": "details_position"},
	"feed":      {"position": "feed_position"},
	"dlq":       {"letter": "dead_letter"},
	"chg":       {"change": "manual_change"},
	"prv":       {"preview": "preview"},
	"cur":       {"cursor": "cursor"},
	"rx":        {skPosition: "judged", "g": "alert_group"},
	"rules":     {"rule": "rule"},
	"alr":       {"alert": "alert", "ack": "acknowledgement"},
	"silences":  {"silence": "silence"},
	"receivers": {"receiver": "receiver"},
	"rcv":       {"secrets": "receiver_secrets"},
	"nt":        {skPosition: "told"},
	"out":       {skLane: "lane", "d": "delivery", "p": "pending", "t": "told_of"},
	"token":     {"token": "token", "used": "token_use"},
	"meta":      {"history": "history", "import": "import", "former": "former_cluster", "rules": "rules_mark", "receivers": "receivers_mark", "probe": "probe"},
}

// The kinds by which others decide; see Kind.
const (
	KindOperation    = "operation"
	KindCluster      = "cluster"
	KindAgent        = "agent"
	KindToken        = "token"
	KindTokenUse     = "token_use"
	KindStream       = "stream"
	KindBusPosition  = "bus_position"
	KindFeedPosition = "feed_position"
	KindPreview      = "preview"
	KindSnapshot     = "snapshot"
	KindImport       = "import"
)

// Kind names what an item is by its key, for counts and messages. One that is
// not known here goes by its partition's prefix.
func Kind(k ledger.Key) string {
	prefix, _, _ := strings.Cut(k.PK, "#")
	if prefix == "aud" {
		return "audit"
	}
	sort, _, _ := strings.Cut(k.SK, "#")
	if kind := kinds[prefix][sort]; kind != "" {
		return kind
	}
	return prefix
}

// ImportKey is the key of how far a move from another engine is.
var ImportKey = ledger.Key{PK: "meta", SK: "import"}
