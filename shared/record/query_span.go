package record

import "github.com/opsplane/opsplane/shared/ledger"

// Span is a part of a sorted list: from a sort key (included) to another
// (excluded), behind a place of an earlier page. Places are sort keys, which
// end in an id and so are unique in their list: items that come and go between
// two pages neither repeat nor hide another.
type Span struct {
	From, To string
	After    string
	Reverse  bool
	Limit    int
}

// query puts the span into a query.
func (sp Span) query(q ledger.Query) ledger.Query {
	q.From, q.To, q.Reverse, q.Limit = sp.From, sp.To, sp.Reverse, sp.Limit
	if sp.After == "" {
		return q
	}
	if sp.Reverse {
		if q.To == "" || sp.After < q.To {
			q.To = sp.After
		}
		return q
	}
	// Names hold no control characters, so nothing sorts between the two.
	if next := sp.After + "\x01"; next > q.From {
		q.From = next
	}
	return q
}
