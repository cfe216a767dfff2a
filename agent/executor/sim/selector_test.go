package sim

import (
	"strings"
	"testing"
)

func TestSelector(t *testing.T) {
	t.Parallel()
	labels := map[string]string{"app": "web", "tier": "front", "x.example/empty": ""}
	for text, want := range map[string]bool{
		"": true, " ": true, "app=web": true, "app = web": true, "app==web,tier!=back": true, "app": true, "! app": false, "!gone": true,
		"app=api": false, "gone=": false, "app=": false, "x.example/empty=": true, "x.example/empty": true, "gone!=x": true, "app!=web": false,
		"app in (web,api)": true, "app in (api)": false, "app in(web) , tier notin (back)": true, "gone in (a)": false, "gone notin (a)": true,
		"app notin ( web )": false, "x.example/empty in (,a)": true, "in in (a)": false, "app,tier": true, "app,gone": false,
	} {
		s, err := parseSelector(text)
		if err != nil || s.match(labels) != want {
			t.Errorf("%q matches: %v, %v", text, !want, err)
		}
	}
	for _, text := range []string{
		"!!", "!", "!!app", "!app=web", ",", "app,", ",app", "app,,tier", "=web", "app=web=x", "app===web", "app=!x", "app web", "app=web tier",
		"app in", "app in web", "app in (", "app in (a", "app in ()", "app in (a)(b)", "app in (a b)", "app notin a,b", "app>1", "app in (a))",
		"(app)", "-app", "app=-x", "/app", "a/b/c", "X.example/a", "app=ä", strings.Repeat("a", 64), "a=" + strings.Repeat("a", 64),
		strings.Repeat("a", 254) + "/a", "app=\"web\"", "app\x00",
	} {
		if s, err := parseSelector(text); err == nil {
			t.Errorf("%q was taken as %v", text, s)
		}
	}
}

func FuzzSelector(f *testing.F) {
	for _, s := range []string{"a in (b,c),!d", "a==b", "!!", "a notin (,)"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := parseSelector(text)
		if err == nil && len(s) == 0 && strings.Trim(text, " \t\r\n") != "" {
			t.Errorf("%q selects everything", text)
		}
	})
}
