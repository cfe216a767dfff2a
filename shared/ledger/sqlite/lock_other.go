//go:build !(linux || darwin || freebsd || netbsd || openbsd || dragonfly)

package sqlite

import "errors"

type fileLock struct{}

func lockFile(string) (*fileLock, error) {
	return nil, errors.New("this system has no flock: the ledger can only be opened read-only")
}

func (*fileLock) release() {}

func isReadOnlyFS(error) bool { return false }
