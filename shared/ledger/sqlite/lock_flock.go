//go:build linux || darwin || freebsd || netbsd || openbsd || dragonfly

package sqlite

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// fileLock is an flock on a file beside the database: the kernel lets it go
// with its process, however that ends.
type fileLock struct{ f *os.File }

func lockFile(path string) (*fileLock, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, readOnly(err)
	}
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if errors.Is(err, syscall.EWOULDBLOCK) {
		defer f.Close()
		text, _ := io.ReadAll(io.LimitReader(f, 32)) // without it the holder stays unnamed
		pid, _ := strconv.Atoi(strings.TrimSpace(string(text)))
		return nil, &LockedError{Path: path, PID: pid}
	}
	if err == nil {
		err = f.Truncate(0)
	}
	if err == nil {
		_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return &fileLock{f: f}, nil
}

// release lets the lock go. The file stays: removing it would let two processes
// lock two files of one name.
//
// Closing alone would leave the lock to a child that is being forked at this
// moment, until it execs: an unlock frees it whoever has a copy (flock(2)).
func (l *fileLock) release() {
	_ = syscall.Flock(int(l.f.Fd()), syscall.LOCK_UN)
	l.f.Close()
}

func isReadOnlyFS(err error) bool { return errors.Is(err, syscall.EROFS) }
