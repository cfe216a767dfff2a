package auth

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/opsplane/opsplane/shared/ledger"
)

var noHash = cmpopts.IgnoreUnexported(Token{})

func TestCreateAndAuthenticate(t *testing.T) {
	t.Parallel()
	b := setup(t)
	spec := TokenSpec{Name: "ci", Role: Operator, Clusters: []string{"clu_1"}, Force: true, CreatedBy: "tok_root", ExpiresAt: b.clock.now().Add(time.Hour)}
	tok, bearer := b.create(spec)
	if !regexp.MustCompile(`^opt_[0-9a-hjkmnp-tv-z]{26}_[A-Za-z0-9_-]{43}$`).MatchString(bearer) {
		t.Errorf("bearer %s", bearer)
	}
	p, err := b.store.Authenticate(t.Context(), bearer)
	if err != nil {
		t.Fatal(err)
	}
	want := Principal{ID: tok.ID, Kind: KindToken, Name: "ci", Roles: []Role{Operator}, Clusters: []string{"clu_1"}, Force: true, Token: tok.ID}
	if diff := cmp.Diff(want, p); diff != "" {
		t.Error(diff)
	}
	got, err := b.store.Get(t.Context(), tok.ID)
	if err != nil {
		t.Fatal(err)
	}
	tok.LastUsedAt = b.clock.now()
	if diff := cmp.Diff(tok, got, noHash); diff != "" {
		t.Error(diff)
	}
	// Neither the secret nor the bearer form is in the ledger.
	it, err := b.ledger.Get(t.Context(), tokenKey(tok.ID))
	if err != nil {
		t.Fatal(err)
	}
	secret := bearer[len(bearer)-secretLen:]
	raw, _ := base64.RawURLEncoding.DecodeString(secret)
	for _, form := range [][]byte{[]byte(secret), raw, []byte(base64.StdEncoding.EncodeToString(raw))} {
		if bytes.Contains(it.Data, form) {
			t.Error("the ledger has the secret")
		}
	}
}

func TestAgentToken(t *testing.T) {
	t.Parallel()
	b := setup(t)
	tok, bearer := b.create(TokenSpec{AgentCluster: "clu_1"})
	b.create(TokenSpec{AgentCluster: "clu_2"})
	p, err := b.store.Authenticate(t.Context(), bearer)
	if err != nil {
		t.Fatal(err)
	}
	if want := (Principal{ID: tok.ID, Kind: KindAgent, Name: "test", Roles: []Role{Agent}, Clusters: []string{"clu_1"}, Token: tok.ID}); !cmp.Equal(want, p) {
		t.Error(cmp.Diff(want, p))
	}
	ts, next, err := b.store.ListAgent(t.Context(), "clu_1", "", 10)
	if err != nil || len(ts) != 1 || ts[0].ID != tok.ID || next != "" {
		t.Errorf("tokens of clu_1: %+v, %v", ts, err)
	}
}

func TestDenied(t *testing.T) {
	t.Parallel()
	b := setup(t)
	expires := b.clock.now().Add(time.Minute)
	_, good := b.create(TokenSpec{Role: Viewer})
	_, other := b.create(TokenSpec{Role: Viewer})
	expiredToken, expired := b.create(TokenSpec{Role: Viewer, ExpiresAt: expires})
	revokedToken, revoked := b.create(TokenSpec{Role: Viewer})
	if _, err := b.store.Revoke(t.Context(), revokedToken.ID, "tok_root"); err != nil {
		t.Fatal(err)
	}
	b.clock.move(time.Minute)
	a := &Authenticator{Tokens: b.store}
	head := len(good) - secretLen
	for name, tt := range map[string]struct {
		bearer string
		want   Reason
	}{
		"nothing":              {"", ReasonMissing},
		"another kind":         {"eyJhbGciOiJub25lIn0.e30.", ReasonMalformed},
		"short":                {good[:len(good)-1], ReasonMalformed},
		"long":                 {good + "A", ReasonMalformed},
		"upper case id":        {strings.ToUpper(good[:head]) + good[head:], ReasonMalformed},
		"id in upper case":     {"opt_" + strings.ToUpper(good[4:30]) + good[30:], ReasonMalformed},
		"id too large":         {"opt_" + strings.Repeat("z", 26) + good[30:], ReasonMalformed},
		"no separator":         {good[:head-1] + "A" + good[head:], ReasonMalformed},
		"not base64url":        {good[:head] + strings.Repeat("+", secretLen), ReasonMalformed},
		"newline in secret":    {good[:head] + "\n" + good[head+1:], ReasonMalformed},
		"unused bits set":      {good[:head] + strings.Repeat("A", secretLen-1) + "B", ReasonMalformed},
		"unknown":              {"opt_01jx0000000000000000000000_" + good[head:], ReasonUnknown},
		"other token's secret": {good[:head] + other[head:], ReasonWrongSecret},
		"revoked":              {revoked, ReasonRevoked},
		"expired":              {expired, ReasonExpired},
	} {
		_, err := a.Authenticate(t.Context(), tt.bearer)
		d, ok := errors.AsType[*DeniedError](err)
		if !ok || d.Reason != tt.want || !errors.Is(err, ErrDenied) {
			t.Errorf("%s: %v (%+v), want %s", name, err, d, tt.want)
			continue
		}
		if d.Error() != ErrDenied.Error() || d.Code() != "unauthenticated" {
			t.Errorf("%s: outside it says %q %q", name, d.Error(), d.Code())
		}
	}
	if expiredToken.Ended(expires.Add(-1)) != "" || expiredToken.Ended(expires) != ReasonExpired {
		t.Error("a token expires at its time")
	}
	if _, err := a.Authenticate(t.Context(), good); err != nil {
		t.Error(err)
	}
}

func TestRevoke(t *testing.T) {
	t.Parallel()
	b := setup(t)
	tok, bearer := b.create(TokenSpec{Role: Admin})
	elsewhere := b.other()
	for _, s := range []*Store{b.store, elsewhere} {
		if _, err := s.Authenticate(t.Context(), bearer); err != nil {
			t.Fatal(err)
		}
	}
	got, err := b.store.Revoke(t.Context(), tok.ID, "tok_root")
	if err != nil || got.RevokedBy != "tok_root" || !got.RevokedAt.Equal(b.clock.now()) {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := b.store.Authenticate(t.Context(), bearer); !errors.Is(err, ErrDenied) {
		t.Errorf("here, at once: %v", err)
	}
	if _, err := elsewhere.Authenticate(t.Context(), bearer); err != nil {
		t.Errorf("elsewhere it may be good for %s: %v", RevokedWithin, err)
	}
	b.clock.move(RevokedWithin)
	if _, err := elsewhere.Authenticate(t.Context(), bearer); !errors.Is(err, ErrDenied) {
		t.Errorf("elsewhere, after %s: %v", RevokedWithin, err)
	}
	again, err := b.store.Revoke(t.Context(), tok.ID, "tok_other")
	if err != nil || again.RevokedBy != "tok_root" || !again.RevokedAt.Equal(got.RevokedAt) {
		t.Errorf("revoked again: %+v, %v", again, err)
	}
	for _, id := range []string{"tok_01jx0000000000000000000000", "tok_x", ""} {
		if _, err := b.store.Revoke(t.Context(), id, "x"); !errors.Is(err, ErrNoToken) {
			t.Errorf("revoke %q: %v", id, err)
		}
		if _, err := b.store.Get(t.Context(), id); !errors.Is(err, ErrNoToken) {
			t.Errorf("get %q: %v", id, err)
		}
	}
}

// Revocation, use and authentication at once: the token ends revoked, and no use
// brings it back.
func TestRevokeWhileUsed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	tok, bearer := b.create(TokenSpec{Role: Viewer})
	var wg sync.WaitGroup
	for range 4 {
		s := b.other()
		wg.Go(func() {
			for range 20 {
				_, err := s.Authenticate(t.Context(), bearer)
				if err != nil && !errors.Is(err, ErrDenied) {
					t.Error(err)
				}
				b.clock.move(LastUsedEvery / 4)
			}
		})
	}
	for range 3 {
		wg.Go(func() {
			if _, err := b.store.Revoke(t.Context(), tok.ID, "x"); err != nil {
				t.Error(err)
			}
			if _, err := b.store.Authenticate(t.Context(), bearer); !errors.Is(err, ErrDenied) {
				t.Errorf("after its revocation: %v", err)
			}
		})
	}
	wg.Wait()
	b.clock.move(RevokedWithin)
	if _, err := b.other().Authenticate(t.Context(), bearer); !errors.Is(err, ErrDenied) {
		t.Errorf("at the end: %v", err)
	}
	it, err := b.ledger.Get(t.Context(), tokenKey(tok.ID))
	if err != nil || it.Version != 2 {
		t.Errorf("the token's item was written %d times, %v; want 2", it.Version, err)
	}
}

func TestWritesInOneCommit(t *testing.T) {
	t.Parallel()
	b := setup(t)
	audit := ledger.Write{Kind: ledger.Put, Item: ledger.Item{Key: ledger.Key{PK: "aud", SK: "1"}, Data: []byte("{}")}, Expect: ledger.AnyVersion}
	tok, bearer, w, err := b.store.CreateWrite(TokenSpec{Name: "x", Role: Viewer})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.store.Authenticate(t.Context(), bearer); !errors.Is(err, ErrDenied) {
		t.Errorf("before the commit: %v", err)
	}
	if err := b.ledger.Commit(t.Context(), w, audit); err != nil {
		t.Fatal(err)
	}
	if _, err := b.store.Authenticate(t.Context(), bearer); err != nil {
		t.Errorf("after the commit: %v", err)
	}
	for range 2 { // the second finds it revoked
		got, w, err := b.store.RevokeWrite(t.Context(), tok.ID, "me")
		if err != nil || got.RevokedBy != "me" {
			t.Fatalf("%+v, %v", got, err)
		}
		if err := b.ledger.Commit(t.Context(), w, audit); err != nil {
			t.Fatal(err)
		}
		b.store.Forget(tok.ID)
		if _, err := b.store.Authenticate(t.Context(), bearer); !errors.Is(err, ErrDenied) {
			t.Errorf("after the revocation: %v", err)
		}
	}
}

func TestCacheAndUse(t *testing.T) {
	t.Parallel()
	b := setup(t)
	tok, bearer := b.create(TokenSpec{Role: Viewer})
	elsewhere := b.other()
	use := func(s *Store) {
		t.Helper()
		if _, err := s.Authenticate(t.Context(), bearer); err != nil {
			t.Fatal(err)
		}
	}
	writes := b.ledger.writes.Load()
	for range 100 {
		use(b.store)
	}
	if n := b.ledger.reads.Load(); n != 1 {
		t.Errorf("100 requests read the ledger %d times", n)
	}
	use(elsewhere)
	for range 100 { // five minutes less three seconds
		b.clock.move(2970 * time.Millisecond)
		use(b.store)
		use(elsewhere)
	}
	if n := b.ledger.writes.Load() - writes; n != 1 {
		t.Errorf("%d writes within five minutes, want 1", n)
	}
	b.clock.move(3 * time.Second)
	use(b.store)
	use(elsewhere)
	if n := b.ledger.writes.Load() - writes; n != 2 {
		t.Errorf("%d writes after five minutes, want 2", n)
	}
	got, err := b.store.Get(t.Context(), tok.ID)
	if err != nil || !got.LastUsedAt.Equal(b.clock.now().Truncate(time.Second)) {
		t.Errorf("last used %s, %v", got.LastUsedAt, err)
	}
}

func TestLedgerAway(t *testing.T) {
	t.Parallel()
	b := setup(t)
	_, bearer := b.create(TokenSpec{Role: Viewer})
	b.ledger.down.Store(true)
	_, err := b.store.Authenticate(t.Context(), bearer)
	coded, ok := errors.AsType[interface {
		error
		Code() string
	}](err)
	if !errors.Is(err, ErrUnavailable) || !errors.Is(err, ledger.ErrUnavailable) || errors.Is(err, ErrDenied) || !ok || coded.Code() != "unavailable" {
		t.Errorf("%v", err)
	}
	b.ledger.down.Store(false)
	if _, err := b.store.Authenticate(t.Context(), bearer); err != nil {
		t.Fatal(err)
	}
	// A use that cannot be written down denies nobody.
	b.clock.move(LastUsedEvery)
	if _, err := b.store.know(t.Context(), "tok_"+bearer[4:30], b.clock.now()); err != nil {
		t.Fatal(err)
	}
	b.ledger.down.Store(true)
	if _, err := b.store.Authenticate(t.Context(), bearer); err != nil {
		t.Error(err)
	}
}

func TestList(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var want []string
	for i := range 7 {
		tok, _ := b.create(TokenSpec{Name: fmt.Sprint(i), Role: Viewer})
		want = append(want, tok.ID)
		b.clock.move(time.Second)
	}
	if _, err := b.store.Revoke(t.Context(), want[3], "x"); err != nil {
		t.Fatal(err)
	}
	var got []string
	for cursor := ""; ; {
		ts, next, err := b.store.List(t.Context(), cursor, 3)
		if err != nil {
			t.Fatal(err)
		}
		for _, tok := range ts {
			got = append(got, tok.ID)
			if revoked := !tok.RevokedAt.IsZero(); revoked != (tok.ID == want[3]) {
				t.Errorf("%s revoked: %t", tok.ID, revoked)
			}
		}
		if cursor = next; cursor == "" {
			break
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("listed %v, want %v", got, want)
	}
}

func TestSpec(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for name, tt := range map[string]struct {
		spec  TokenSpec
		field string
	}{
		"no name":           {TokenSpec{Role: Viewer}, "/name"},
		"long name":         {TokenSpec{Name: strings.Repeat("n", 129), Role: Viewer}, "/name"},
		"control in name":   {TokenSpec{Name: "a\nb", Role: Viewer}, "/name"},
		"bad utf-8":         {TokenSpec{Name: "a\xff", Role: Viewer}, "/name"},
		"no role":           {TokenSpec{Name: "a"}, "/role"},
		"odd role":          {TokenSpec{Name: "a", Role: "root"}, "/role"},
		"agent by role":     {TokenSpec{Name: "a", Role: Agent}, "/role"},
		"agent and more":    {TokenSpec{Name: "a", Role: Admin, AgentCluster: "clu_1"}, "/role"},
		"agent with force":  {TokenSpec{Name: "a", Force: true, AgentCluster: "clu_1"}, "/role"},
		"agent of two":      {TokenSpec{Name: "a", Clusters: []string{"clu_2"}, AgentCluster: "clu_1"}, "/role"},
		"viewer with force": {TokenSpec{Name: "a", Role: Viewer, Force: true}, "/force"},
		"past":              {TokenSpec{Name: "a", Role: Viewer, ExpiresAt: b.clock.now()}, "/expires_at"},
		"empty cluster":     {TokenSpec{Name: "a", Role: Viewer, Clusters: []string{"clu_1", ""}}, "/clusters/1"},
		"cluster twice":     {TokenSpec{Name: "a", Role: Viewer, Clusters: []string{"c", "c"}}, "/clusters/1"},
		"many clusters":     {TokenSpec{Name: "a", Role: Viewer, Clusters: make([]string, 101)}, "/clusters"},
	} {
		_, _, err := b.store.Create(t.Context(), tt.spec)
		if e, ok := errors.AsType[*InvalidError](err); !ok || e.Pointer() != tt.field {
			t.Errorf("%s: %v, want a fault of %s", name, err, tt.field)
		}
	}
}

func TestCacheIsBounded(t *testing.T) {
	t.Parallel()
	s := NewStore(nil, newClock().now)
	for i := range cacheMax + 10 {
		s.remember(fmt.Sprint(i), &known{readAt: s.now()})
	}
	if len(s.cache) > cacheMax {
		t.Errorf("%d tokens in memory", len(s.cache))
	}
}

func FuzzParseBearer(f *testing.F) {
	_, bearer := mint(TokenSpec{Name: "x", Role: Viewer}, time.Unix(0, 0))
	f.Add(bearer)
	f.Add("opt_")
	f.Fuzz(func(t *testing.T, s string) {
		tokenID, secret, ok := parseBearer(s)
		if ok && "opt_"+strings.TrimPrefix(tokenID, "tok_")+"_"+secret != s {
			t.Errorf("%q read as %q %q", s, tokenID, secret)
		}
	})
}
