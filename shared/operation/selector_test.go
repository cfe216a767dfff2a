package operation

import "testing"

func TestCheckSelector(t *testing.T) {
	t.Parallel()
	for s, ok := range map[string]bool{
		"app": true, "!app": true, "app=web": true, "app==web": true, "app!=web": true, "app=": true, "app = web": true,
		"app in (a,b)": true, "app notin (a, b)": true, "app in (a,b),tier=x,!canary": true, "example.com/app=web": true,
		"!!": false, "=": false, "app=x;rm": false, "app in a,b": false, "app in (a": false, "": false, ",": false, "app,": false,
		"a b": false, "-app": false, "app=web!": false, "/app": false, "Example.com/": false, "app in (a)(b)": false,
	} {
		if err := CheckSelector(s); (err == nil) != ok {
			t.Errorf("%q: %v", s, err)
		}
	}
}
