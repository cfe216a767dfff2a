package operation

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// MaxJSONDepth bounds how deep objects and lists may be nested in JSON that is kept
// and served as it came, the outermost counted: an agent's details. Readers differ
// about how deep they go (jq 1.6: 256 levels, Python's json: some hundreds), and
// what is served stands in objects and lists of its own.
const MaxJSONDepth = 32

// JSONError says why JSON from outside is not kept as it came.
type JSONError struct {
	Pointer string // RFC 6901, to the value
	Detail  string
}

func (e *JSONError) Error() string { return strings.TrimPrefix(e.Pointer+" ", " ") + e.Detail }

// CheckJSON tells, of JSON at the pointer, whether every ordinary reader can read b, and all of them read the
// same (RFC 7493, "I-JSON"): valid JSON in UTF-8, nested at most MaxJSONDepth deep,
// without half of a surrogate pair, without a number that no double can hold, and
// without a key that is twice in its object. Whole numbers past 2^53 are left:
// readers round them. The error is a *JSONError.
func CheckJSON(at string, b []byte) error {
	switch {
	case !utf8.Valid(b):
		return &JSONError{at, "is not UTF-8"}
	case !json.Valid(b):
		return &JSONError{at, "is not JSON"}
	}
	return (&jsonScan{b: b, root: at, keys: true}).run()
}

// MendJSON makes JSON readable that was taken before CheckJSON was: half of a
// surrogate pair is U+FFFD, what is nested deeper than MaxJSONDepth is null, a number
// that no double can hold is a string. What is readable comes back as it is.
func MendJSON(b []byte) []byte {
	if len(b) == 0 || (&jsonScan{b: b}).run() == nil && utf8.Valid(b) {
		return b
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil {
		return b // is no JSON, which whoever encodes it tells
	}
	out, err := json.Marshal(mended(v, 1))
	if err != nil {
		return b
	}
	return out
}

// mended is a value at the depth, whose strings the decoder has mended.
func mended(v any, depth int) any {
	switch v := v.(type) {
	case map[string]any:
		if depth > MaxJSONDepth {
			return nil
		}
		for k, x := range v {
			v[k] = mended(x, depth+1)
		}
	case []any:
		if depth > MaxJSONDepth {
			return nil
		}
		for i, x := range v {
			v[i] = mended(x, depth+1)
		}
	case json.Number:
		if !holdable([]byte(v)) {
			return v.String()
		}
	}
	return v
}

// holdable tells whether a double can hold the number.
func holdable(number []byte) bool {
	if len(number) < 300 && bytes.IndexByte(number, 'e') < 0 && bytes.IndexByte(number, 'E') < 0 {
		return true // the largest has 309 digits
	}
	f, err := strconv.ParseFloat(string(number), 64)
	return !errors.Is(err, strconv.ErrRange) || !math.IsInf(f, 0)
}

// jsonScan walks through valid JSON. It allocates nothing where objects are small.
type jsonScan struct {
	b      []byte
	root   string // its pointer
	keys   bool   // look for keys that are there twice
	at     int
	depth  int
	levels [MaxJSONDepth]jsonLevel
	seen   [][]byte // keys of the objects around, one behind the other
}

// jsonLevel is an object or a list around the place.
type jsonLevel struct {
	object  bool
	wantKey bool
	index   int             // of a list's element
	key     []byte          // of an object's member, as it is written
	first   int             // where its keys begin in seen
	many    map[string]bool // its keys, once they are many
}

// manyKeys is from how many keys on they are looked up, not gone through.
const manyKeys = 16

func (s *jsonScan) run() error {
	for s.at < len(s.b) {
		var l *jsonLevel
		if s.depth > 0 {
			l = &s.levels[s.depth-1]
		}
		switch c := s.b[s.at]; c {
		case '{', '[':
			if s.depth == MaxJSONDepth {
				return s.fault("is nested deeper than %d levels, the limit", MaxJSONDepth)
			}
			s.levels[s.depth] = jsonLevel{object: c == '{', wantKey: c == '{', first: len(s.seen)}
			s.depth++
		case '}', ']':
			if l == nil {
				return s.fault("is not JSON")
			}
			s.seen = s.seen[:l.first]
			s.depth--
		case ',':
			if l != nil {
				l.index, l.wantKey = l.index+1, l.object
			}
		case ':':
			if l != nil {
				l.wantKey = false
			}
		case '"':
			if err := s.text(l); err != nil {
				return err
			}
			continue
		case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
			if err := s.number(); err != nil {
				return err
			}
			continue
		}
		s.at++
	}
	return nil
}

// text passes a string, and takes it as a key where one is due.
func (s *jsonScan) text(l *jsonLevel) error {
	begin := s.at + 1
	end, escaped, half := begin, false, -1
	for end < len(s.b) && s.b[end] != '"' {
		if s.b[end] != '\\' {
			end++
			continue
		}
		escaped = true
		n, whole := escape(s.b[end:])
		if !whole && half < 0 {
			half = end
		}
		end += n
	}
	end = min(end, len(s.b))
	raw := s.b[begin:end]
	s.at = end + 1
	if l != nil && l.wantKey {
		l.key = raw
	}
	if half >= 0 {
		return s.fault("holds half of a surrogate pair (%s)", s.b[half:min(half+6, len(s.b))])
	}
	if s.keys && l != nil && l.wantKey && s.twice(l, raw, escaped) {
		return s.fault("is there twice")
	}
	return nil
}

// escape tells how long the escape is that b begins with, and whether it is whole:
// half of a surrogate pair is not.
func escape(b []byte) (n int, whole bool) {
	if len(b) < 6 || b[1] != 'u' {
		return 2, true
	}
	unit := func(b []byte) uint64 {
		u, err := strconv.ParseUint(string(b), 16, 16)
		if err != nil {
			return 0
		}
		return u
	}
	switch u := unit(b[2:6]); {
	case u < 0xD800 || u > 0xDFFF:
		return 6, true
	case u < 0xDC00 && len(b) >= 12 && b[6] == '\\' && b[7] == 'u':
		if low := unit(b[8:12]); low >= 0xDC00 && low <= 0xDFFF {
			return 12, true
		}
	}
	return 6, false
}

// twice tells whether the object has the key already, and takes it.
func (s *jsonScan) twice(l *jsonLevel, raw []byte, escaped bool) bool {
	key := raw
	if escaped {
		var text string
		if json.Unmarshal(s.b[s.at-len(raw)-2:s.at], &text) == nil {
			key = []byte(text)
		}
	}
	have := s.seen[l.first:]
	if l.many == nil && len(have) == manyKeys {
		l.many = make(map[string]bool, 2*manyKeys)
		for _, k := range have {
			l.many[string(k)] = true
		}
	}
	if l.many != nil {
		if l.many[string(key)] {
			return true
		}
		l.many[string(key)] = true
		return false
	}
	for _, k := range have {
		if bytes.Equal(k, key) {
			return true
		}
	}
	s.seen = append(s.seen, key)
	return false
}

// number passes a number.
func (s *jsonScan) number() error {
	begin := s.at
	for s.at < len(s.b) && strings.IndexByte("+-.0123456789eE", s.b[s.at]) >= 0 {
		s.at++
	}
	if n := s.b[begin:s.at]; !holdable(n) {
		return s.fault("is a number that no double can hold (%.32s)", n)
	}
	return nil
}

// maxPointer bounds the pointer of a fault, in bytes: whole parts of it.
const maxPointer = 256

// fault is what is wrong at the place.
func (s *jsonScan) fault(format string, args ...any) error {
	b := strings.Builder{}
	b.WriteString(s.root)
	for i := range s.levels[:s.depth] {
		l := &s.levels[i]
		part := strconv.Itoa(l.index)
		if l.object {
			part = ""
			_ = json.Unmarshal([]byte(`"`+string(l.key)+`"`), &part) // it was read before
		}
		if b.Len()+len(part) > maxPointer {
			break
		}
		b.WriteString("/" + EscapePointer(part))
	}
	return &JSONError{Pointer: b.String(), Detail: fmt.Sprintf(format, args...)}
}
