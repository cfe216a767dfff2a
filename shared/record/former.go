package record

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
)

const skFormer = "former#"

// FormerKey is the key that says that a cluster was deleted and has events left.
func FormerKey(cluster string) ledger.Key { return ledger.Key{PK: "meta", SK: skFormer + cluster} }

// FormerOf returns the deleted cluster that the key speaks of, or "".
func FormerOf(k ledger.Key) string {
	cluster, ok := strings.CutPrefix(k.SK, skFormer)
	if k.PK != "meta" || !ok {
		return ""
	}
	return cluster
}

// Wakes tells which event streams the feed's records are about, those of clusters
// that were deleted too, each once, and whether they tell of changed rules, for which
// all are to be followed. Whoever reads the feed for the reactor has it from here: on
// AWS, the filter of react's mapping lets the same records through (template.yaml).
func Wakes(changes []ledger.Change) (streams []string, all bool) {
	for _, c := range changes {
		if c.Key == RulesKey {
			all = true
		}
		s := StreamOf(c.Key)
		if s == "" && !c.Deleted {
			s = FormerOf(c.Key)
		}
		if s != "" && !slices.Contains(streams, s) {
			streams = append(streams, s)
		}
	}
	return streams, all
}

type former struct {
	DeletedAt time.Time `json:"deleted_at"`
}

// FormerWrite says that a cluster is deleted: its operations stay, and its stream
// is to be found until retention has taken the last of its events. The feed tells
// the reactor, whose alerts of it end.
func FormerWrite(cluster string, at time.Time) ledger.Write {
	return ledger.Write{Item: ledger.Item{Key: FormerKey(cluster), Data: Encode(former{at.UTC()})}, Expect: ledger.AnyVersion, Feed: true}
}

// FormerAt is when a deleted cluster that has events left was deleted; zero: nobody can
// read that any more. ErrNotFound: it is no such cluster.
func (st *Store) FormerAt(ctx context.Context, cluster string) (time.Time, error) {
	it, err := st.Ledger.Get(ctx, FormerKey(cluster))
	if err != nil {
		return time.Time{}, err
	}
	f, err := Decode[former](it)
	if errors.Is(err, ErrNewer) {
		return time.Time{}, err
	}
	return f.DeletedAt, nil
}

// Former lists the deleted clusters that have events left.
func (st *Store) Former(ctx context.Context) ([]string, error) {
	q := ledger.Query{PK: "meta", From: skFormer, To: skFormer + "~"}
	var out []string
	for {
		p, err := st.Ledger.Query(ctx, q)
		if err != nil {
			return nil, fmt.Errorf("list deleted clusters: %w", err)
		}
		for _, it := range p.Items {
			out = append(out, strings.TrimPrefix(it.SK, skFormer))
		}
		if p.Next == "" {
			return out, nil
		}
		q.After = p.Next
	}
}
