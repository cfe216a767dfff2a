package ledger

import "context"

// Scanner is what an engine can add that can be walked from end to end, as a
// move to another engine does. No request's way goes over it.
type Scanner interface {
	// Scan returns up to limit items (1 to MaxPage, 0 means MaxPage) behind an
	// earlier page's Next, in an order of the engine's own. Each item that is
	// there during the whole walk comes once. Expired items are left out.
	Scan(ctx context.Context, after string, limit int) (Page, error)
}
