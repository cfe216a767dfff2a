package sim

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// version is a semantic version without build metadata (semver.org 2.0.0).
type version struct {
	numbers [3]int
	pre     string
}

func parseVersion(text string) (version, error) {
	var v version
	s, _, _ := strings.Cut(strings.TrimPrefix(text, "v"), "+")
	s, v.pre, _ = strings.Cut(s, "-")
	parts := strings.Split(s, ".")
	if len(parts) != 3 {
		return v, fmt.Errorf("%q is no version such as v1.2.3", text)
	}
	for i, p := range parts {
		n, err := strconv.Atoi(p)
		if err != nil || n < 0 {
			return v, fmt.Errorf("%q is no version such as v1.2.3", text)
		}
		v.numbers[i] = n
	}
	return v, nil
}

// compare orders versions; a pre-release comes before its release.
func (v version) compare(o version) int {
	for i := range v.numbers {
		if c := cmp.Compare(v.numbers[i], o.numbers[i]); c != 0 {
			return c
		}
	}
	switch {
	case v.pre == o.pre:
		return 0
	case v.pre == "":
		return 1
	case o.pre == "":
		return -1
	}
	return cmp.Compare(v.pre, o.pre)
}

// fits tells whether the component can go to a version.
func (c *Component) fits(text string) (bool, string) {
	v, err := parseVersion(text)
	if err != nil {
		return false, err.Error()
	}
	if lo, err := parseVersion(c.Min); err == nil && v.compare(lo) < 0 {
		return false, fmt.Sprintf("%s %s is older than %s, the oldest that fits this cluster", c.Name, text, c.Min)
	}
	if hi, err := parseVersion(c.Max); err == nil && v.compare(hi) > 0 {
		return false, fmt.Sprintf("%s %s is newer than %s, the newest that fits this cluster", c.Name, text, c.Max)
	}
	return true, ""
}
