package queue

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestCheckText(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, body string
		at         int
		ok         bool
	}{
		{"json", `{"n":1}`, 7, true},
		{"white space", "\t\r\n ", 4, true},
		{"delete character", "\x7f", 1, true},
		{"beyond the basic plane", "a\U0001F680", 5, true},
		{"the last of the basic plane", "\uFFFD", 3, true},
		{"zero byte", "ab\x00", 2, false},
		{"escape", "\x1b[0m", 0, false},
		{"vertical tab", "a\v", 1, false},
		{"no character", "a\uFFFE", 1, false},
		{"no character either", "\uFFFF", 0, false},
		{"no UTF-8", "ab\xff", 2, false},
		{"half a surrogate pair", "\xed\xa0\x80", 0, false},
		{"cut off", "ä\xc3", 2, false},
	} {
		if at, ok := CheckText([]byte(tt.body)); at != tt.at || ok != tt.ok {
			t.Errorf("%s: %d, %t; want %d, %t", tt.name, at, ok, tt.at, tt.ok)
		}
		err := CheckSend([]Outgoing{{Body: []byte(tt.body)}})
		if tt.ok != (err == nil) || err != nil && !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: send: %v", tt.name, err)
		}
	}
}

// TestCarriesWhatXMLCarries: the standard library's XML reader is the judge.
func TestCarriesWhatXMLCarries(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r := rapid.Int32Range(0, utf8.MaxRune).Filter(func(r int32) bool {
			return r != '<' && r != '&' && utf8.ValidRune(r)
		}).Draw(t, "rune")
		d := xml.NewDecoder(bytes.NewReader(append(utf8.AppendRune([]byte("<a>"), r), "</a>"...)))
		var err error
		for err == nil {
			_, err = d.Token()
		}
		if xmlTakes := errors.Is(err, io.EOF); xmlTakes != Carries(r) {
			t.Fatalf("%U: XML takes it: %t, Carries: %t (%v)", r, xmlTakes, Carries(r), err)
		}
	})
}
