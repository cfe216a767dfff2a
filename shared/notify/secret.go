package notify

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// Rules of secrets (Standard Webhooks 1.0.0, "Signature scheme": 24 to 64 bytes,
// base64 behind whsec_).
const (
	secretPrefix   = "whsec_"
	minSecretBytes = 24
	maxSecretBytes = 64
	newSecretBytes = 32
	// MaxOverlap is how long the secret that was replaced may sign, too.
	MaxOverlap = 7 * 24 * time.Hour
	// DefaultOverlap is for how long it does.
	DefaultOverlap = 24 * time.Hour
)

// secrets are what signs a receiver's messages: the newest first. They are kept as
// they are, apart from what is shown of receivers: a hash could not sign.
type secrets struct {
	Keys []signing `json:"keys"`
}

type signing struct {
	Key       []byte     `json:"key"`
	CreatedAt time.Time  `json:"created_at"`
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
}

// parseSecret reads a secret, or makes one where there is none.
func parseSecret(text string) ([]byte, error) {
	if text == "" {
		key := make([]byte, newSecretBytes)
		_, _ = rand.Read(key) // crypto/rand.Read never fails (Go 1.24)
		return key, nil
	}
	rest, ok := strings.CutPrefix(text, secretPrefix)
	key, err := base64.StdEncoding.Strict().DecodeString(rest)
	if !ok || err != nil {
		return nil, alert.Faults{{Pointer: "/secret", Code: alert.CodeFormat, Detail: "must be " + secretPrefix + " and base64"}}
	}
	if n := len(key); n < minSecretBytes || n > maxSecretBytes {
		return nil, alert.Faults{{Pointer: "/secret", Code: alert.CodeRange,
			Detail: fmt.Sprintf("has %d bytes, must have %d to %d", n, minSecretBytes, maxSecretBytes)}}
	}
	return key, nil
}

func secretText(key []byte) string { return secretPrefix + base64.StdEncoding.EncodeToString(key) }

func (s *secrets) fingerprints() []Fingerprint {
	out := make([]Fingerprint, len(s.Keys))
	for i, k := range s.Keys {
		h := sha256.Sum256(k.Key)
		out[i] = Fingerprint{SHA256: hex.EncodeToString(h[:8]), CreatedAt: k.CreatedAt, ExpiresAt: k.ExpiresAt}
	}
	return out
}

// sign is the header webhook-signature: a signature of each secret in force, so
// that a receiver may change over at any time between.
func (s *secrets) sign(now time.Time, id string, at int64, payload []byte) string {
	var out []string
	for _, k := range s.Keys {
		if k.ExpiresAt != nil && !now.Before(*k.ExpiresAt) {
			continue
		}
		m := hmac.New(sha256.New, k.Key)
		fmt.Fprintf(m, "%s.%s.", id, strconv.FormatInt(at, 10))
		m.Write(payload)
		out = append(out, "v1,"+base64.StdEncoding.EncodeToString(m.Sum(nil)))
	}
	return strings.Join(out, " ")
}

// loadSecrets reads a receiver's secrets with the version of their item. Errors:
// errUnreadable.
func (s *Service) loadSecrets(ctx context.Context, id string) (secrets, int64, error) {
	it, err := s.Store.Ledger.Get(ctx, record.ReceiverSecretsKey(id))
	if errors.Is(err, ledger.ErrNotFound) {
		return secrets{}, 0, nil
	}
	if err != nil {
		return secrets{}, 0, fmt.Errorf("read secrets of receiver %s: %w", id, err)
	}
	out, err := record.Decode[secrets](it)
	if err != nil {
		return secrets{}, it.Version, fmt.Errorf("%w: %w", errUnreadable, err)
	}
	return out, it.Version, nil
}
