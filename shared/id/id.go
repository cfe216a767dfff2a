// Package id makes and checks identifiers: a prefix and a lower-case ULID.
//
// An identifier says what kind of thing it names. It never orders anything:
// clocks of several processes made it.
package id

import (
	"crypto/rand"
	"crypto/sha256"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
)

// The prefixes.
const (
	Operation  = "op"
	Step       = "stp"
	Command    = "cmd"
	Event      = "evt"
	Cluster    = "clu"
	Node       = "nod"
	Device     = "dev"
	Workload   = "wkl"
	Deployment = "dep"
	Component  = "cmp"
	Agent      = "agt"
	Change     = "chg"
	Audit      = "aud"
	DeadLetter = "dlq"
	Preview    = "prv"
	Cursor     = "cur"
	Alert      = "alr"
	Rule       = "rul"
	Silence    = "sil"
	Receiver   = "rcv"
	Delivery   = "dlv"
	Object     = "obj" // of a kind that the plane does not know
)

// New returns a fresh identifier whose time part is at.
func New(prefix string, at time.Time) string {
	var u ulid.ULID
	_ = u.SetTime(uint64(max(at.UnixMilli(), 0)))
	_, _ = rand.Read(u[6:]) // crypto/rand.Read never fails (Go 1.24)
	return prefix + "_" + strings.ToLower(u.String())
}

// Derive returns the identifier that the parts determine: the same parts, the
// same identifier, in any process.
func Derive(prefix string, parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		h.Write([]byte(p))
		h.Write([]byte{0})
	}
	var u ulid.ULID
	copy(u[:], h.Sum(nil))
	return prefix + "_" + strings.ToLower(u.String())
}

// Valid tells whether s is an identifier with the prefix, in canonical form.
func Valid(prefix, s string) bool {
	rest, ok := strings.CutPrefix(s, prefix+"_")
	if !ok || len(rest) != ulid.EncodedSize || rest != strings.ToLower(rest) {
		return false
	}
	_, err := ulid.ParseStrict(strings.ToUpper(rest))
	return err == nil
}

// Prefix returns the part before the underscore, or "".
func Prefix(s string) string {
	p, _, ok := strings.Cut(s, "_")
	if !ok {
		return ""
	}
	return p
}
