package httpapi

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/opsplane/opsplane/infra/docs/runbooks"
	"github.com/opsplane/opsplane/shared/alert"
	"github.com/opsplane/opsplane/shared/event"
)

// TestEveryShippedRuleHasItsRunbook: each page is of a rule and each rule has its
// page, at the link that its alerts have, with what a person needs.
func TestEveryShippedRuleHasItsRunbook(t *testing.T) {
	t.Parallel()
	p := setup(t)
	var want []string
	for _, s := range alert.ShippedRules() {
		want = append(want, s.Rule.Name+".md")
		a := p.do("", "GET", s.Rule.Runbook, nil).want(200)
		if got := a.header.Get("Content-Type"); got != "text/markdown; charset=utf-8" {
			t.Errorf("%s comes as %s", s.Rule.Runbook, got)
		}
		if !strings.HasPrefix(a.raw, "# "+s.Rule.Name+"\n") {
			t.Errorf("%s begins with %.40q", s.Rule.Runbook, a.raw)
		}
		for _, h := range []string{"Look", "Do", "Resolves", "False alarms"} {
			if strings.Count(a.raw, "\n## "+h+"\n") != 1 {
				t.Errorf("%s lacks %q", s.Rule.Runbook, h)
			}
		}
	}
	if d := cmp.Diff(want, runbooks.Files()); d != "" {
		t.Errorf("pages (-rules +pages):\n%s", d)
	}
	for _, path := range []string{"/docs/runbooks/none.md", "/docs/runbooks/runbooks.go", "/docs/runbooks/..%2falerts.md", "/docs/runbooks/fatal-xid.md/x"} {
		p.do("", "GET", path, nil).want(404)
	}
}

// TestRunbooksAsHTML: a browser gets a page without scripts, in which nothing of
// the text is markup.
func TestRunbooksAsHTML(t *testing.T) {
	t.Parallel()
	p := setup(t)
	index := p.do("", "GET", runbooksPath, nil, "Accept: text/html,*/*").want(200)
	for _, f := range runbooks.Files() {
		path := runbooksPath + "/" + f
		if !strings.Contains(index.raw, `<a href="`+path+`">`) {
			t.Errorf("the index lacks %s", f)
		}
		a := p.do("", "GET", path, nil, "Accept: text/html,*/*").want(200)
		if csp := a.header.Get("Content-Security-Policy"); !strings.Contains(csp, "default-src 'none'") || strings.Contains(csp, "script") {
			t.Error(csp)
		}
		for _, left := range []string{"```", "\n## ", "<script", "<li>- "} {
			if strings.Contains(a.raw, left) {
				t.Errorf("%s: %q is left", f, left)
			}
		}
		for _, tag := range []string{"p", "ul", "ol", "pre", "code", "h3"} {
			if n, m := len(regexp.MustCompile("<"+tag+"[ >]").FindAllString(a.raw, -1)), strings.Count(a.raw, "</"+tag+">"); n != m {
				t.Errorf("%s: %d <%s>, %d ends", f, n, tag, m)
			}
		}
	}
	got := string(pageHTML([]byte("# A <b>\n\nText `<i>*x*`, *it* & [so](/docs).\n\n1. One\n   more\n2. Two\n\n```sh\ncurl \"<x>\"\n```\n[no](javascript:x)\n")))
	for _, want := range []string{"<h2>A &lt;b&gt;</h2>", "<code>&lt;i&gt;*x*</code>, <em>it</em> &amp; <a href=\"/docs\">so</a>.",
		`<ol><li value="1">One more<li value="2">Two</ol>`, "<pre><code>curl &#34;&lt;x&gt;&#34;\n</code></pre>", "[no](javascript:x)"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in %s", want, got)
		}
	}
}

var (
	docsCall  = regexp.MustCompile(`\$U(/[^\s"'?]*)(?:\?([^\s"']*))?`)
	docsWords = regexp.MustCompile("`(GET|POST|PUT|DELETE) (/v1/[^ `?]*)")
	docsID    = regexp.MustCompile(`/([A-Z_]+|[a-z-]*[a-z]-[a-z-]+)(/|$)`)
)

// TestDocsCallWhatIsThere: the calls that runbooks and alerts.md show are routes
// that take these parameters, and the event types that they name are in the
// catalogue.
func TestDocsCallWhatIsThere(t *testing.T) {
	t.Parallel()
	p := setup(t)
	texts := map[string]string{}
	for _, f := range runbooks.Files() {
		text, _ := runbooks.Page(f)
		texts[f] = string(text)
	}
	text, err := os.ReadFile(filepath.Join("..", "..", "infra", "docs", "alerts.md"))
	must(t, err)
	texts["alerts.md"] = string(text)
	doc := documented("").huma.OpenAPI()
	template := func(path string) string {
		if doc.Paths[path] != nil || p.api.routes["GET "+path] != nil {
			return path
		}
		return docsID.ReplaceAllString(path, "/{id}$2")
	}
	calls := 0
	for name, text := range texts {
		for _, m := range docsCall.FindAllStringSubmatch(text, -1) {
			path := template(m[1])
			item := doc.Paths[path]
			if item == nil {
				if p.api.routes["GET "+path] == nil && p.api.routes["GET "+runbooksPath+"/{page}"] == nil {
					t.Errorf("%s: there is no %s", name, m[1])
				}
				continue
			}
			calls++
			for pair := range strings.SplitSeq(m[2], "&") {
				key, value, _ := strings.Cut(pair, "=")
				if key == "" {
					continue
				}
				has := false
				for _, x := range item.Get.Parameters {
					has = has || x.In == "query" && x.Name == key
				}
				if !has {
					t.Errorf("%s: %s takes no %s", name, path, key)
				}
				if key == "type" && path == "/v1/events" && !strings.HasSuffix(value, ".*") {
					if _, ok := event.Lookup(value); !ok {
						t.Errorf("%s: there is no event type %s", name, value)
					}
				}
			}
		}
		for _, m := range docsWords.FindAllStringSubmatch(text, -1) {
			calls++
			if path := template(m[2]); p.api.routes[m[1]+" "+path] == nil {
				t.Errorf("%s: there is no %s %s", name, m[1], path)
			}
		}
		rules := slices.Collect(func(yield func(string) bool) {
			for _, m := range regexp.MustCompile(`[?&]rule=([a-z-]+)`).FindAllStringSubmatch(text, -1) {
				yield(m[1])
			}
		})
		for _, r := range rules {
			if name != "alerts.md" && !slices.ContainsFunc(alert.ShippedRules(), func(s alert.Shipped) bool { return s.Rule.Name == r }) {
				t.Errorf("%s: there is no rule %s", name, r)
			}
		}
	}
	if calls < 40 {
		t.Errorf("only %d calls were looked at", calls)
	}
}
