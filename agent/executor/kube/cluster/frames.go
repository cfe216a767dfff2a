package cluster

import (
	"bytes"
	"encoding/binary"
	"mime"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"
)

// headMost bounds what is kept of a watch's event: its type comes first.
const headMost = 24

// frames tells the types of a watch's events as their bytes come, in whatever portions
// they are read: client-go reads the length of one in the binary form by itself.
// https://kubernetes.io/docs/reference/using-api/api-concepts/#protobuf-encoding
type frames struct {
	typ  func(head []byte) string // "": it is not all there
	cut  func(b []byte) (of, rest []byte, ends bool)
	size []byte // of the event, in the binary form, as far as it is read
	left int    // bytes of the event to come then
	head []byte // the event's first bytes
	told bool   // its type is
}

// framesOf are of the events that an answer streams; nil: in a form that is not known.
func framesOf(h http.Header) *frames {
	f := &frames{}
	switch form, _, _ := mime.ParseMediaType(h.Get("Content-Type")); form {
	case runtime.ContentTypeProtobuf:
		f.cut, f.typ = f.cutBinary, typeBinary
	case runtime.ContentTypeJSON:
		f.cut, f.typ = cutLine, typeJSON
	default:
		return nil
	}
	return f
}

// take takes the next bytes, and lists the types that they tell.
func (f *frames) take(b []byte) (types []string) {
	if f == nil {
		return nil
	}
	for len(b) > 0 {
		of, rest, ends := f.cut(b)
		f.head = append(f.head, of[:min(len(of), headMost-len(f.head))]...)
		if !f.told {
			if typ := f.typ(f.head); typ != "" {
				types, f.told = append(types, typ), true
			}
		}
		if ends {
			f.size, f.head, f.told = f.size[:0], f.head[:0], false
		}
		b = rest
	}
	return types
}

// cutLine takes what belongs to one event in JSON: each is a line.
func cutLine(b []byte) (of, rest []byte, ends bool) { return bytes.Cut(b, []byte("\n")) }

func typeJSON(head []byte) string {
	text, begun := bytes.CutPrefix(head, []byte(`{"type":"`))
	if word, _, whole := bytes.Cut(text, []byte(`"`)); begun && whole {
		return string(word)
	}
	return ""
}

// cutBinary takes what belongs to one event in the binary form: four bytes say how long
// it is.
func (f *frames) cutBinary(b []byte) (of, rest []byte, ends bool) {
	if n := min(len(b), 4-len(f.size)); n > 0 {
		f.size, b = append(f.size, b[:n]...), b[n:]
		if len(f.size) < 4 {
			return nil, b, false
		}
		f.left = int(binary.BigEndian.Uint32(f.size))
	}
	n := min(len(b), f.left)
	f.left -= n
	return b[:n], b[n:], f.left == 0
}

// typeBinary reads the first field of a WatchEvent, a string that is shorter than 128 bytes.
func typeBinary(head []byte) string {
	const field = 1<<3 | 2 // its number, and that a length follows
	if len(head) < 2 || head[0] != field || len(head) < 2+int(head[1]) {
		return ""
	}
	return string(head[2 : 2+int(head[1])])
}
