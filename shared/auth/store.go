package auth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/ledger"
)

const (
	// RevokedWithin is the longest time that a revoked token is still accepted,
	// by another process than the one that revoked it.
	RevokedWithin = 2 * time.Second
	// LastUsedEvery is how often the use of a token is written down.
	LastUsedEvery = 5 * time.Minute
	// cacheMax bounds the tokens kept in memory.
	cacheMax = 10_000
)

// Store keeps tokens in the ledger.
//
//	partition   sort    what                     indexes
//	token#ID    token   the token                list ("tokens"), scope (an agent's: "tokens#CLUSTER")
//	token#ID    used    when it was last used
//
// The use has an item of its own so that writing it down can neither collide
// with a revocation nor undo one.
type Store struct {
	ledger ledger.Ledger
	now    func() time.Time

	mu    sync.Mutex
	cache map[string]*known
}

// known is a token read from the ledger a moment ago.
type known struct {
	token    Token
	readAt   time.Time // before the read began
	used     int64     // version of the used item, 0: there is none
	usedWhen time.Time
}

// NewStore returns a store over the ledger; now is its clock, nil for time.Now.
func NewStore(l ledger.Ledger, now func() time.Time) *Store {
	if now == nil {
		now = time.Now
	}
	return &Store{ledger: l, now: now, cache: map[string]*known{}}
}

const (
	listTokens = "tokens"
	skToken    = "token"
	skUsed     = "used"
)

func tokenKey(id string) ledger.Key { return ledger.Key{PK: "token#" + id, SK: skToken} }
func usedKey(id string) ledger.Key  { return ledger.Key{PK: "token#" + id, SK: skUsed} }

func scopeTokens(cluster string) string { return listTokens + "#" + cluster }

// tokenItem is a token's data in the ledger.
type tokenItem struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	Role      Role      `json:"role"`
	Clusters  []string  `json:"clusters,omitempty"`
	Force     bool      `json:"force,omitempty"`
	Hash      []byte    `json:"hash"` // SHA-256 of the secret
	CreatedAt time.Time `json:"created_at"`
	CreatedBy string    `json:"created_by,omitempty"`
	ExpiresAt time.Time `json:"expires_at,omitzero"`
	RevokedAt time.Time `json:"revoked_at,omitzero"`
	RevokedBy string    `json:"revoked_by,omitempty"`
}

type usedItem struct {
	At time.Time `json:"at"`
}

func encode(t Token, expect int64) (ledger.Write, error) {
	data, err := json.Marshal(tokenItem{
		ID: t.ID, Name: t.Name, Role: t.Role, Clusters: t.Clusters, Force: t.Force, Hash: t.hash[:],
		CreatedAt: t.CreatedAt, CreatedBy: t.CreatedBy, ExpiresAt: t.ExpiresAt, RevokedAt: t.RevokedAt, RevokedBy: t.RevokedBy,
	})
	if err != nil {
		return ledger.Write{}, fmt.Errorf("encode token %s: %w", t.ID, err)
	}
	k := tokenKey(t.ID)
	index := map[ledger.Index]ledger.Key{ledger.List: {PK: listTokens, SK: t.ID}}
	if t.Role == Agent {
		index[ledger.Scope] = ledger.Key{PK: scopeTokens(t.Clusters[0]), SK: t.ID}
	}
	return ledger.Write{Kind: ledger.Put, Item: ledger.Item{Key: k, Data: data, Index: index}, Expect: expect}, nil
}

func decode(it ledger.Item) (Token, error) {
	var d tokenItem
	if err := json.Unmarshal(it.Data, &d); err != nil {
		return Token{}, fmt.Errorf("decode token %s: %w", it.Key, err)
	}
	t := Token{
		ID: d.ID, Name: d.Name, Role: d.Role, Clusters: d.Clusters, Force: d.Force,
		CreatedAt: d.CreatedAt, CreatedBy: d.CreatedBy, ExpiresAt: d.ExpiresAt, RevokedAt: d.RevokedAt, RevokedBy: d.RevokedBy,
	}
	if copy(t.hash[:], d.Hash) != len(t.hash) || tokenKey(d.ID) != it.Key {
		return Token{}, fmt.Errorf("decode token %s: not a token's data", it.Key)
	}
	return t, nil
}

// Create makes a token and returns it with its bearer form, which is never
// shown again. A fault of the specification is an *InvalidError.
func (s *Store) Create(ctx context.Context, spec TokenSpec) (Token, string, error) {
	t, bearer, w, err := s.CreateWrite(spec)
	if err != nil {
		return Token{}, "", err
	}
	if err := s.ledger.Commit(ctx, w); err != nil {
		return Token{}, "", fmt.Errorf("create token: %w", err)
	}
	return t, bearer, nil
}

// CreateWrite is Create for a commit of the caller's own: the token exists when
// the write is committed.
func (s *Store) CreateWrite(spec TokenSpec) (Token, string, ledger.Write, error) {
	now := s.now()
	if err := spec.check(now); err != nil {
		return Token{}, "", ledger.Write{}, err
	}
	t, bearer := mint(spec, now)
	w, err := encode(t, 0)
	if err != nil {
		return Token{}, "", ledger.Write{}, err
	}
	return t, bearer, w, nil
}

// Get returns a token; ErrNoToken when there is none.
func (s *Store) Get(ctx context.Context, tokenID string) (Token, error) {
	t, _, err := s.read(ctx, tokenID)
	if err != nil {
		return Token{}, err
	}
	if err := s.addUse(ctx, []*Token{&t}); err != nil {
		return Token{}, err
	}
	return t, nil
}

func (s *Store) read(ctx context.Context, tokenID string) (Token, int64, error) {
	if !id.Valid(idPrefix, tokenID) {
		return Token{}, 0, &noTokenError{tokenID}
	}
	it, err := s.ledger.Get(ctx, tokenKey(tokenID))
	if errors.Is(err, ledger.ErrNotFound) {
		return Token{}, 0, &noTokenError{tokenID}
	}
	if err != nil {
		return Token{}, 0, fmt.Errorf("get token %s: %w", tokenID, err)
	}
	t, err := decode(it)
	return t, it.Version, err
}

// List returns a page of all tokens, ended ones too, by time of creation. next
// is empty at the end.
func (s *Store) List(ctx context.Context, cursor string, limit int) (ts []Token, next string, err error) {
	return s.list(ctx, ledger.Query{Index: ledger.List, PK: listTokens, Limit: limit, After: cursor})
}

// ListAgent is List for the agents' tokens of one cluster.
func (s *Store) ListAgent(ctx context.Context, cluster, cursor string, limit int) (ts []Token, next string, err error) {
	return s.list(ctx, ledger.Query{Index: ledger.Scope, PK: scopeTokens(cluster), Limit: limit, After: cursor})
}

func (s *Store) list(ctx context.Context, q ledger.Query) ([]Token, string, error) {
	page, err := s.ledger.Query(ctx, q)
	if err != nil {
		return nil, "", fmt.Errorf("list tokens: %w", err)
	}
	ts := make([]Token, len(page.Items))
	refs := make([]*Token, len(ts))
	for i, it := range page.Items {
		if ts[i], err = decode(it); err != nil {
			return nil, "", err
		}
		refs[i] = &ts[i]
	}
	if err := s.addUse(ctx, refs); err != nil {
		return nil, "", err
	}
	return ts, page.Next, nil
}

// addUse fills in when the tokens were last used.
func (s *Store) addUse(ctx context.Context, ts []*Token) error {
	for len(ts) > 0 {
		n := min(len(ts), ledger.MaxWrites)
		keys := make([]ledger.Key, n)
		for i, t := range ts[:n] {
			keys[i] = usedKey(t.ID)
		}
		items, err := s.ledger.GetMany(ctx, keys)
		if err != nil {
			return fmt.Errorf("get use of tokens: %w", err)
		}
		for i, t := range ts[:n] {
			if it, ok := items[keys[i]]; ok {
				if t.LastUsedAt, err = decodeUse(it); err != nil {
					return err
				}
			}
		}
		ts = ts[n:]
	}
	return nil
}

func decodeUse(it ledger.Item) (time.Time, error) {
	var u usedItem
	if err := json.Unmarshal(it.Data, &u); err != nil {
		return time.Time{}, fmt.Errorf("decode use of token %s: %w", it.Key, err)
	}
	return u.At, nil
}

// Revoke ends a token for good, here at once and elsewhere within
// RevokedWithin. Revoking one that was revoked changes nothing.
func (s *Store) Revoke(ctx context.Context, tokenID, by string) (Token, error) {
	for {
		t, w, err := s.RevokeWrite(ctx, tokenID, by)
		if err != nil {
			return Token{}, err
		}
		err = s.ledger.Commit(ctx, w)
		switch {
		case err == nil:
			// Remembered as revoked, so that a read begun before cannot bring it
			// back to memory.
			s.remember(tokenID, &known{token: t, readAt: s.now()})
			return t, nil
		case !errors.Is(err, ledger.ErrConflict): // only another revocation writes the item
			return Token{}, fmt.Errorf("revoke token %s: %w", tokenID, err)
		}
	}
}

// RevokeWrite is Revoke for a commit of the caller's own, who calls Forget after
// it. For a token already revoked the write only checks that it still is.
func (s *Store) RevokeWrite(ctx context.Context, tokenID, by string) (Token, ledger.Write, error) {
	t, version, err := s.read(ctx, tokenID)
	if err != nil {
		return Token{}, ledger.Write{}, err
	}
	if !t.RevokedAt.IsZero() {
		return t, ledger.Write{Kind: ledger.Check, Item: ledger.Item{Key: tokenKey(tokenID)}, Expect: version}, nil
	}
	t.RevokedAt, t.RevokedBy = s.now().UTC().Truncate(time.Millisecond), by
	w, err := encode(t, version)
	return t, w, err
}

// Forget drops what this process remembers of a token.
func (s *Store) Forget(tokenID string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.cache, tokenID)
}

// Authenticate tells whose bearer token it is. The error matches ErrDenied (with
// the reason in a *DeniedError) or ErrUnavailable.
func (s *Store) Authenticate(ctx context.Context, bearer string) (Principal, error) {
	tokenID, secret, ok := parseBearer(bearer)
	if !ok {
		return Principal{}, &DeniedError{Reason: ReasonMalformed}
	}
	now := s.now()
	k, err := s.know(ctx, tokenID, now)
	if err != nil {
		return Principal{}, err
	}
	if !k.token.has(secret) {
		return Principal{}, &DeniedError{Reason: ReasonWrongSecret, Token: tokenID}
	}
	if r := k.token.Ended(now); r != "" {
		return Principal{}, &DeniedError{Reason: r, Token: tokenID}
	}
	s.markUsed(ctx, k, now)
	return k.token.principal(), nil
}

// know returns the token, from memory when it was read a moment ago. Tokens that
// do not exist are not remembered: a new one works at once.
func (s *Store) know(ctx context.Context, tokenID string, now time.Time) (*known, error) {
	s.mu.Lock()
	k := s.cache[tokenID]
	s.mu.Unlock()
	if k != nil {
		if age := now.Sub(k.readAt); age >= 0 && age < RevokedWithin {
			return k, nil
		}
	}
	items, err := s.ledger.GetMany(ctx, []ledger.Key{tokenKey(tokenID), usedKey(tokenID)})
	if err != nil {
		return nil, &unavailableError{fmt.Errorf("get token %s: %w", tokenID, err)}
	}
	it, ok := items[tokenKey(tokenID)]
	if !ok {
		return nil, &DeniedError{Reason: ReasonUnknown}
	}
	k = &known{readAt: now}
	if k.token, err = decode(it); err != nil {
		return nil, &unavailableError{err}
	}
	if it, ok := items[usedKey(tokenID)]; ok {
		k.used = it.Version
		if k.usedWhen, err = decodeUse(it); err != nil {
			return nil, &unavailableError{err}
		}
	}
	s.remember(tokenID, k)
	return k, nil
}

func (s *Store) remember(tokenID string, k *known) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.cache[tokenID]; old != nil {
		if !old.token.RevokedAt.IsZero() && k.token.RevokedAt.IsZero() {
			return // a read that began before the revocation
		}
		if old.usedWhen.After(k.usedWhen) {
			k.used, k.usedWhen = old.used, old.usedWhen
		}
	}
	if len(s.cache) >= cacheMax {
		for id, old := range s.cache {
			if k.readAt.Sub(old.readAt) >= RevokedWithin {
				delete(s.cache, id)
			}
		}
		for id := range s.cache { // any: it is read again when needed
			if len(s.cache) < cacheMax {
				break
			}
			delete(s.cache, id)
		}
	}
	s.cache[tokenID] = k
}

// markUsed writes the use down when the last one written is long enough ago.
// The write is conditional on that one, so that of all processes only one makes
// it; it is a hint, and failing it denies nobody.
func (s *Store) markUsed(ctx context.Context, k *known, now time.Time) {
	s.mu.Lock()
	since := now.Sub(k.usedWhen)
	expect := k.used
	if since >= LastUsedEvery {
		k.usedWhen = now // once per process, whatever becomes of the write
	}
	s.mu.Unlock()
	if since < LastUsedEvery {
		return
	}
	data, err := json.Marshal(usedItem{At: now.UTC().Truncate(time.Second)})
	if err != nil {
		return
	}
	w := ledger.Write{Kind: ledger.Put, Item: ledger.Item{Key: usedKey(k.token.ID), Data: data}, Expect: expect}
	if s.ledger.Commit(ctx, w) == nil {
		s.mu.Lock()
		k.used = expect + 1
		s.mu.Unlock()
	}
}
