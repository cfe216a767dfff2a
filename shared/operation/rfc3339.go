package operation

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

var rfc3339Shape = regexp.MustCompile(`^(\d{4}-\d{2}-\d{2})[Tt](\d{2}):(\d{2}):(\d{2})(?:(\.\d{1,9})\d*)?([Zz]|[+-]\d{2}:\d{2})$`)

// ParseTime reads a timestamp by the strict grammar of RFC 3339, section 5.6.
// Digits past nanoseconds are dropped. A leap second (23:59:60 UTC) is taken as
// the second after it, which is what clocks here can tell.
func ParseTime(s string) (time.Time, error) {
	bad := fmt.Errorf("must be an RFC 3339 timestamp such as 2026-11-29T12:00:00Z")
	if len(s) > 64 {
		return time.Time{}, bad
	}
	m := rfc3339Shape.FindStringSubmatch(s)
	if m == nil {
		return time.Time{}, bad
	}
	if off := m[6]; len(off) == 6 {
		h, _ := strconv.Atoi(off[1:3])
		mi, _ := strconv.Atoi(off[4:])
		if h > 23 || mi > 59 {
			return time.Time{}, bad
		}
	}
	sec, leap := m[4], time.Duration(0)
	if sec == "60" {
		sec, leap = "59", time.Second
	}
	t, err := time.Parse(time.RFC3339Nano, m[1]+"T"+m[2]+":"+m[3]+":"+sec+m[5]+strings.ToUpper(m[6]))
	if err != nil {
		return time.Time{}, bad
	}
	t = t.UTC()
	if leap != 0 {
		if t.Hour() != 23 || t.Minute() != 59 {
			return time.Time{}, bad
		}
		t = t.Truncate(time.Second).Add(leap)
	}
	if t.Year() < 0 || t.Year() > 9999 { // an offset took it out of what the grammar can write
		return time.Time{}, bad
	}
	return t, nil
}
