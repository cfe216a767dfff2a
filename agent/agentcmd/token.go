package agentcmd

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/opsplane/opsplane/agent/loop"
)

// TokenEnv is where the token is read when no file is named. It is never an
// argument: those are public on the machine.
const TokenEnv = "OPSPLANE_TOKEN"

const (
	maxTokenBytes = 8 << 10
	// tokenEvery is how often the file is looked at again. The kubelet renews a
	// mounted Secret about once a minute.
	// https://kubernetes.io/docs/concepts/configuration/secret/#using-secrets-as-files-from-a-pod
	tokenEvery = 10 * time.Second
)

func readToken(file string) (string, error) {
	if file == "" {
		if t := strings.TrimSpace(os.Getenv(TokenEnv)); t != "" {
			return t, nil
		}
		return "", errors.New("no token: name --token-file or set " + TokenEnv)
	}
	f, err := os.Open(file)
	if err != nil {
		return "", fmt.Errorf("read token: %w", err)
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, maxTokenBytes+1))
	if err != nil {
		return "", fmt.Errorf("read token: %w", err)
	}
	data = bytes.TrimSpace(data)
	if len(data) == 0 || len(data) > maxTokenBytes || bytes.ContainsAny(data, "\r\n \t") {
		return "", fmt.Errorf("read token: %s does not hold one token", file)
	}
	return string(data), nil
}

// tokenFile is a token that may be replaced while the agent runs: write the new
// one, wait until every agent has read it, revoke the old one.
type tokenFile struct {
	path  string
	log   *slog.Logger
	now   func() time.Time
	mu    sync.Mutex
	token string
	read  time.Time
	bad   bool
}

func newTokenFile(path, token string, log *slog.Logger) *tokenFile {
	return &tokenFile{path: path, token: token, log: log, now: time.Now, read: time.Now()}
}

// current returns the newest token that could be read. A file that is gone or
// spoilt for a moment leaves the last one standing.
func (t *tokenFile) current() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := t.now(); now.Sub(t.read) >= tokenEvery {
		t.read = now
		token, err := readToken(t.path)
		switch {
		case err != nil && !t.bad:
			t.bad = true
			t.log.Warn("the token cannot be read again; the last one stays", slog.String("err", loop.Redact(err.Error(), 512)))
		case err == nil:
			if token != t.token {
				t.log.Info("the token was replaced")
			}
			t.token, t.bad = token, false
		}
	}
	return t.token
}
