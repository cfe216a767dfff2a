package queue

import (
	"fmt"
	"time"
	"unicode/utf8"
)

// CheckSend tells whether every engine can take the messages; its errors match
// ErrInvalid and name the limit. Engines call it before anything else.
func CheckSend(ms []Outgoing) error {
	if n := len(ms); n < 1 || n > MaxBatch {
		return fmt.Errorf("%w: send of %d messages, a call takes 1 to %d", ErrInvalid, n, MaxBatch)
	}
	for _, m := range ms {
		if n := len(m.Body); n < 1 || n > MaxBodyBytes {
			return fmt.Errorf("%w: body of %d bytes, a message takes 1 to %d", ErrInvalid, n, MaxBodyBytes)
		}
		if at, ok := CheckText(m.Body); !ok {
			return fmt.Errorf("%w: body has a character at byte %d that no queue carries: takes UTF-8 of the characters of XML", ErrInvalid, at)
		}
		if m.Delay < 0 || m.Delay > MaxDelay {
			return fmt.Errorf("%w: delay of %s, the limit is %s", ErrInvalid, m.Delay, MaxDelay)
		}
	}
	return nil
}

// CheckText tells whether a body is text that every engine carries, else where
// it is not: UTF-8 of the characters that SQS takes, which are those of XML 1.0
// (Amazon SQS API Reference, SendMessage: #x9, #xA, #xD, #x20 to #xD7FF, #xE000
// to #xFFFD, #x10000 to #x10FFFF).
func CheckText(body []byte) (at int, ok bool) {
	for at < len(body) {
		r, n := utf8.DecodeRune(body[at:])
		if r == utf8.RuneError && n == 1 || !Carries(r) {
			return at, false
		}
		at += n
	}
	return at, true
}

// Carries tells whether a character may be in a body; see CheckText.
func Carries(r rune) bool {
	switch {
	case r == '\t', r == '\n', r == '\r':
		return true
	case r < 0x20, r == 0xFFFE, r == 0xFFFF:
		return false
	}
	return r <= utf8.MaxRune && (r < 0xD800 || r > 0xDFFF)
}

// CheckReceive tells whether every engine can carry the receive out; its errors
// match ErrInvalid.
func CheckReceive(max int, wait, visibility time.Duration) error {
	if max < 1 || max > MaxBatch {
		return fmt.Errorf("%w: receive of %d messages, a call takes 1 to %d", ErrInvalid, max, MaxBatch)
	}
	if wait < 0 || wait > MaxWait {
		return fmt.Errorf("%w: wait of %s, the limit is %s", ErrInvalid, wait, MaxWait)
	}
	if visibility <= 0 || visibility > MaxVisibility {
		return fmt.Errorf("%w: visibility of %s, the limit is %s", ErrInvalid, visibility, MaxVisibility)
	}
	return nil
}

// CheckDelete tells whether a delete names 1 to MaxBatch receipts.
func CheckDelete(receipts []string) error {
	if n := len(receipts); n < 1 || n > MaxBatch {
		return fmt.Errorf("%w: delete of %d messages, a call takes 1 to %d", ErrInvalid, n, MaxBatch)
	}
	return nil
}

// CheckExtend tells whether a message can be hidden for d.
func CheckExtend(d time.Duration) error {
	if d < 0 || d > MaxVisibility {
		return fmt.Errorf("%w: extend by %s, the limit is %s", ErrInvalid, d, MaxVisibility)
	}
	return nil
}

// CheckName tells whether a queue can have the name.
func CheckName(name string) error {
	if name == "" || len(name) > MaxNameBytes {
		return fmt.Errorf("%w: queue name %q: takes 1 to %d bytes", ErrInvalid, name, MaxNameBytes)
	}
	return nil
}
