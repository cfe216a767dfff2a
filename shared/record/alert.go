package record

import (
	"strings"

	"github.com/opsplane/opsplane/shared/ledger"
)

// ListAlerts is the partition of the indexes of alerts. RulesPK and SilencesPK are
// those of all rules and all silences: there are few, and who judges must see them
// all, which an index that is late does not promise.
const (
	ListAlerts = "alerts"
	RulesPK    = "rules"
	SilencesPK = "silences"
)

const (
	skPosition = "position"
	skGroup    = "g#"
)

// JudgedPK is the partition of what the reactor knows of a stream.
func JudgedPK(stream string) string { return "rx#" + stream }

// JudgedKey is the key of how far a stream is judged.
func JudgedKey(stream string) ledger.Key { return ledger.Key{PK: JudgedPK(stream), SK: skPosition} }

// JudgedOf returns the stream of which the key says how far it is judged, or "".
func JudgedOf(k ledger.Key) string {
	stream, ok := strings.CutPrefix(k.PK, "rx#")
	if k.SK != skPosition || !ok {
		return ""
	}
	return stream
}

// GroupKey is the key of what a rule knows of a group of a stream; group is the
// rule's id and the group's hash, joined by "#".
func GroupKey(stream, group string) ledger.Key {
	return ledger.Key{PK: JudgedPK(stream), SK: skGroup + group}
}

// GroupSpan bounds the sort keys of a stream's groups: from included, to not.
func GroupSpan() (from, to string) { return skGroup, skGroup + "~" }

// RuleKey is the key of an alert rule.
func RuleKey(id string) ledger.Key { return ledger.Key{PK: RulesPK, SK: "rule#" + id} }

// RuleNameKey is the key that makes a rule's name unique.
func RuleNameKey(name string) ledger.Key { return ledger.Key{PK: "name#" + name, SK: "rule"} }

// RulesKey is the key of the mark that each change of a rule or silence moves.
var RulesKey = ledger.Key{PK: "meta", SK: "rules"}

// AlertKey is the key of an alert.
func AlertKey(id string) ledger.Key { return ledger.Key{PK: "alr#" + id, SK: "alert"} }

// AckKey is the key of who took an alert on.
func AckKey(id string) ledger.Key { return ledger.Key{PK: "alr#" + id, SK: "ack"} }

// AlertsOfStream is the index partition of the alerts of a stream.
func AlertsOfStream(stream string) string { return ListAlerts + "#" + stream }

// AlertsOfRule is the index partition of the alerts of a rule.
func AlertsOfRule(name string) string { return ListAlerts + "#rule#" + name }

// SilenceKey is the key of a silence.
func SilenceKey(id string) ledger.Key { return ledger.Key{PK: SilencesPK, SK: "silence#" + id} }

// Query puts the span into a query.
func (sp Span) Query(q ledger.Query) ledger.Query { return sp.query(q) }
