package dynamo

import (
	"bytes"
	"compress/flate"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/opsplane/opsplane/shared/ledger"
)

// An item's data is stored behind a byte that says how. A format stays readable
// for as long as a table may hold it: a new dictionary is a new format.
const (
	formatRaw   = 0
	formatFlate = 1 // DEFLATE (RFC 1951) with the preset dictionary 1
)

// packFrom is how many bytes of data are worth compressing: writes are billed
// by the KB, and an item of less has room left.
const packFrom = 400

// dictionary1 is what records mostly repeat, the most frequent last. It must
// never change.
//
//go:embed dictionary_1.txt
var dictionary1 []byte

var (
	packers = sync.Pool{New: func() any {
		w, err := flate.NewWriterDict(nil, flate.BestCompression, dictionary1)
		if err != nil {
			panic(err) // only for a level that does not exist
		}
		return w
	}}
	unpackers = sync.Pool{New: func() any { return flate.NewReaderDict(bytes.NewReader(nil), dictionary1) }}
)

// pack puts data into the format that makes it smallest.
func pack(data []byte) []byte {
	if len(data) >= packFrom {
		b := bytes.NewBuffer(make([]byte, 0, len(data)/2))
		b.WriteByte(formatFlate)
		w := packers.Get().(*flate.Writer)
		defer packers.Put(w)
		w.Reset(b)
		_, err := w.Write(data)
		if err = errors.Join(err, w.Close()); err == nil && b.Len() < len(data) {
			return b.Bytes()
		}
	}
	return append([]byte{formatRaw}, data...)
}

// unpack reads what pack wrote, no more than the largest item: a few stored
// bytes must not become gigabytes.
func unpack(stored []byte) ([]byte, error) {
	if len(stored) == 0 {
		return nil, fmt.Errorf("%w: no format byte", errGarbled)
	}
	body := stored[1:]
	switch stored[0] {
	case formatRaw:
		return body, nil
	case formatFlate:
		r := unpackers.Get().(io.ReadCloser)
		defer unpackers.Put(r)
		if err := r.(flate.Resetter).Reset(bytes.NewReader(body), dictionary1); err != nil {
			return nil, fmt.Errorf("%w: %w", errGarbled, err)
		}
		b := bytes.NewBuffer(make([]byte, 0, 4*len(body)))
		n, err := io.Copy(b, io.LimitReader(r, ledger.MaxItemBytes+1))
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errGarbled, err)
		}
		if n > ledger.MaxItemBytes {
			return nil, fmt.Errorf("%w: data of over %d bytes", errGarbled, ledger.MaxItemBytes)
		}
		return b.Bytes(), nil
	}
	return nil, fmt.Errorf("%w: format %d", errGarbled, stored[0])
}
