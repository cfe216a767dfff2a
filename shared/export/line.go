package export

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"
	"unicode/utf8"

	"github.com/opsplane/opsplane/shared/ledger"
)

// Format is the version of the stream's form that this build writes, and the only
// one that it reads.
const Format = 1

const (
	markBytes = 8 // of the running sum, on each line
	// maxLine bounds a line: an item's data, each byte of it escaped, with its keys.
	maxLine = 6*ledger.MaxItemBytes + 64<<10
)

// Errors of reading a stream; match with errors.Is.
var (
	// ErrBroken: the stream was cut or altered, or is none.
	ErrBroken = errors.New("export stream is broken")
	// ErrFormat: another version wrote the stream.
	ErrFormat = errors.New("export stream of an unknown format")
)

// BrokenError says where a stream is broken. errors.Is(err, ErrBroken) holds.
type BrokenError struct {
	Line int64 // from 1
	What string
}

func (e *BrokenError) Error() string {
	return fmt.Sprintf("%v at line %d: %s", ErrBroken, e.Line, e.What)
}

// Is makes errors.Is(err, ErrBroken) true.
func (e *BrokenError) Is(target error) bool { return target == ErrBroken }

// Header is the first line.
type Header struct {
	Format int       `json:"opsplane_export"`
	MadeAt time.Time `json:"made_at"`
	Source Source    `json:"source"`
	Items  int64     `json:"items"`
	// Counts of the items by kind (record.Kind).
	Counts map[string]int64 `json:"counts"`
	Holds  Holds            `json:"holds"`
}

// Holds is what verify.Run counted in the source, so that the same can be counted
// on the other side.
type Holds struct {
	Operations int `json:"operations"`
	Live       int `json:"live"` // of them
	Entries    int `json:"journal_entries"`
	Locks      int `json:"locks"` // held
	Streams    int `json:"streams"`
	Events     int `json:"events"`
}

// Source says where a stream comes from, for people.
type Source struct {
	Engine  string `json:"engine"`
	Version string `json:"version"`
	Name    string `json:"name"`
}

// trailer is the last line.
type trailer struct {
	End    bool             `json:"end"`
	Items  int64            `json:"items"`
	Counts map[string]int64 `json:"counts"`
	SHA256 string           `json:"sha256"` // of all documents before it
}

// item is an item's line.
type item struct {
	PK      string                     `json:"pk"`
	SK      string                     `json:"sk"`
	Text    *string                    `json:"d,omitempty"`       // data that is UTF-8
	Bytes   []byte                     `json:"b,omitempty"`       // else, in base64
	Due     int64                      `json:"due,omitempty"`     // Unix milliseconds
	Expires int64                      `json:"expires,omitempty"` // Unix seconds
	Index   map[ledger.Index][2]string `json:"index,omitempty"`
	Stage   stage                      `json:"stage,omitempty"`
}

func newItem(it *ledger.Item, st stage) item {
	out := item{PK: it.PK, SK: it.SK, Stage: st}
	if utf8.Valid(it.Data) {
		s := string(it.Data)
		out.Text = &s
	} else {
		out.Bytes = it.Data
	}
	if !it.Due.IsZero() {
		out.Due = it.Due.UnixMilli()
	}
	if !it.Expires.IsZero() {
		out.Expires = it.Expires.Unix()
	}
	for x, k := range it.Index {
		if out.Index == nil {
			out.Index = map[ledger.Index][2]string{}
		}
		out.Index[x] = [2]string{k.PK, k.SK}
	}
	return out
}

func (i *item) ledger() ledger.Item {
	it := ledger.Item{Key: ledger.Key{PK: i.PK, SK: i.SK}, Data: i.Bytes}
	if i.Text != nil {
		it.Data = []byte(*i.Text)
	}
	if i.Due != 0 {
		it.Due = time.UnixMilli(i.Due).UTC()
	}
	if i.Expires != 0 {
		it.Expires = time.Unix(i.Expires, 0).UTC()
	}
	for x, k := range i.Index {
		if it.Index == nil {
			it.Index = map[ledger.Index]ledger.Key{}
		}
		it.Index[x] = ledger.Key{PK: k[0], SK: k[1]}
	}
	return it
}

// writer writes lines.
type writer struct {
	w   *bufio.Writer
	sum hash.Hash
	buf bytes.Buffer
}

func newWriter(w io.Writer) *writer {
	return &writer{w: bufio.NewWriterSize(w, 1<<20), sum: sha256.New()}
}

func (w *writer) line(doc any) error {
	w.buf.Reset()
	e := json.NewEncoder(&w.buf) // ends each document with a newline
	e.SetEscapeHTML(false)
	if err := e.Encode(doc); err != nil {
		return fmt.Errorf("encode line: %w", err)
	}
	w.sum.Write(w.buf.Bytes())
	mark := hex.EncodeToString(w.sum.Sum(nil)[:markBytes])
	if _, err := w.w.WriteString(mark + " "); err != nil {
		return fmt.Errorf("write line: %w", err)
	}
	if _, err := w.w.Write(w.buf.Bytes()); err != nil {
		return fmt.Errorf("write line: %w", err)
	}
	return nil
}

// reader reads lines and checks each one's mark.
type reader struct {
	r   *bufio.Reader
	sum hash.Hash
	n   int64 // lines read
}

func newReader(r io.Reader) *reader {
	return &reader{r: bufio.NewReaderSize(r, 1<<20), sum: sha256.New()}
}

func (r *reader) broken(format string, args ...any) error {
	return &BrokenError{Line: r.n, What: fmt.Sprintf(format, args...)}
}

// line returns the next line's document, or io.EOF behind the last line.
func (r *reader) line() ([]byte, error) {
	var line []byte
	for {
		part, err := r.r.ReadSlice('\n')
		line = append(line, part...)
		if err == nil {
			break
		}
		if errors.Is(err, io.EOF) && len(line) == 0 {
			return nil, io.EOF
		}
		if !errors.Is(err, bufio.ErrBufferFull) && !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("read stream: %w", err)
		}
		if errors.Is(err, io.EOF) || len(line) > maxLine {
			r.n++
			if len(line) > maxLine {
				return nil, r.broken("it has more than %d bytes", maxLine)
			}
			return nil, r.broken("the stream ends within it")
		}
	}
	r.n++
	mark := 2 * markBytes
	if len(line) < mark+3 || line[mark] != ' ' {
		return nil, r.broken("it is no line of an export")
	}
	doc := line[mark+1:]
	r.sum.Write(doc)
	if want := hex.EncodeToString(r.sum.Sum(nil)[:markBytes]); want != string(line[:mark]) {
		return nil, r.broken("its mark is %q, its content and the lines before make %q: it or one before was altered, added or lost", line[:mark], want)
	}
	return doc, nil
}

func decode(doc []byte, into any) error {
	dec := json.NewDecoder(bytes.NewReader(doc))
	dec.DisallowUnknownFields()
	return dec.Decode(into)
}
