package export

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"

	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/record"
)

// stream is a stream that was checked from end to end.
type stream struct {
	src    io.ReadSeeker
	header Header
	sha256 string // of all documents before the trailer
	stages [stages]int64
}

// open checks a whole stream before anything of it is used.
func open(src io.ReadSeeker) (*stream, error) {
	s := &stream{src: src}
	counts := map[string]int64{}
	items, last := int64(0), atRest
	err := s.each(func(r *reader, it *ledger.Item, at stage) error {
		if at < last || at >= stages {
			return r.broken("item %s of stage %d comes after stage %d", it.Key, at, last)
		}
		last = at
		if err := ledger.Validate([]ledger.Write{{Item: *it}}); err != nil {
			return r.broken("%v", err)
		}
		items++
		counts[record.Kind(it.Key)]++
		s.stages[at]++
		return nil
	})
	if err != nil {
		return nil, err
	}
	if items != s.header.Items || !maps.Equal(counts, s.header.Counts) {
		return nil, &BrokenError{Line: 1, What: fmt.Sprintf("the header tells of %d items, there are %d", s.header.Items, items)}
	}
	return s, nil
}

// each reads the stream from its beginning and calls f for each item. A stream
// that ends without its trailer, or goes on behind it, is broken.
func (s *stream) each(f func(r *reader, it *ledger.Item, at stage) error) error {
	if _, err := s.src.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("read stream: %w", err)
	}
	r := newReader(s.src)
	if err := s.first(r); err != nil {
		return err
	}
	for n := int64(0); ; n++ {
		sum := hex.EncodeToString(r.sum.Sum(nil))
		doc, err := r.line()
		if errors.Is(err, io.EOF) {
			r.n++
			return r.broken("the stream ends after %d of %d items, without its last line", n, s.header.Items)
		}
		if err != nil {
			return err
		}
		if n == s.header.Items {
			return s.last(r, doc, sum)
		}
		var line item
		if err := decode(doc, &line); err != nil {
			return r.broken("it is no item: %v", err)
		}
		it := line.ledger()
		if err := f(r, &it, line.Stage); err != nil {
			return err
		}
	}
}

func (s *stream) first(r *reader) error {
	doc, err := r.line()
	if errors.Is(err, io.EOF) {
		r.n = 1
		return r.broken("the stream is empty")
	}
	if err != nil {
		return err
	}
	var h Header
	err = decode(doc, &h)
	if h.Format != Format && h.Format != 0 { // another version may have other fields
		return fmt.Errorf("%w: it has version %d, this build reads %d", ErrFormat, h.Format, Format)
	}
	if err != nil || h.Format == 0 {
		return r.broken("it is no header of an export: %v", err)
	}
	s.header = h
	return nil
}

func (s *stream) last(r *reader, doc []byte, sum string) error {
	var t trailer
	if err := decode(doc, &t); err != nil || !t.End {
		return r.broken("it is no last line of an export")
	}
	if t.Items != s.header.Items || !maps.Equal(t.Counts, s.header.Counts) || t.SHA256 != sum {
		return r.broken("the last line tells of %d items with the sum %s, there are %d with %s", t.Items, t.SHA256, s.header.Items, sum)
	}
	s.sha256 = sum
	if _, err := r.line(); !errors.Is(err, io.EOF) {
		return r.broken("it comes behind the last line")
	}
	return nil
}
