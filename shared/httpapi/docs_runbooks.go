package httpapi

import (
	"bytes"
	"html"
	"net/http"
	"regexp"
	"strings"

	"github.com/opsplane/opsplane/infra/docs/runbooks"
	"github.com/opsplane/opsplane/shared/problem"
)

const runbooksPath = "/docs/runbooks"

// runbookRoutes serve the shipped rules' pages, which alerts link to: Markdown, and
// HTML to whoever accepts that. Like the API's own document they need no
// credential: they say nothing of the site.
func (a *API) runbookRoutes() {
	a.handle(route{pattern: "GET " + runbooksPath, public: true}, func(w http.ResponseWriter, r *http.Request) {
		text := "# Runbooks\n\nOne page for each rule that ships.\n\n"
		for _, f := range runbooks.Files() {
			text += "- [" + strings.TrimSuffix(f, ".md") + "](" + runbooksPath + "/" + f + ")\n"
		}
		writePage(w, r, []byte(text))
	})
	a.handle(route{pattern: "GET " + runbooksPath + "/{page}", public: true}, func(w http.ResponseWriter, r *http.Request) {
		text, ok := runbooks.Page(strings.TrimSuffix(r.PathValue("page"), ".md") + ".md")
		if !ok {
			a.refuse(w, requestOf(r.Context()), problem.New(problem.NotFound, "there is no such page"))
			return
		}
		writePage(w, r, text)
	})
}

func writePage(w http.ResponseWriter, r *http.Request, text []byte) {
	w.Header().Set("Vary", "Accept")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if !strings.Contains(r.Header.Get("Accept"), "text/html") {
		w.Header().Set("Content-Type", "text/markdown; charset=utf-8")
		_, _ = w.Write(text) // the client is gone: nobody is left to tell
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; style-src '"+hashOf(docsStyle)+"'")
	_, _ = w.Write(pageHTML(text))
}

// pageHTML makes HTML of the Markdown that the runbooks are written in: headings,
// paragraphs, lists, fenced code, and inline code, emphasis and links. Everything
// else is text.
func pageHTML(text []byte) []byte {
	var b bytes.Buffer
	open := "" // the element that lines go on in
	end := func() {
		if open != "" {
			b.WriteString("</" + open + ">\n")
			open = ""
		}
	}
	begin := func(tag string) {
		if open != tag {
			end()
			b.WriteString("<" + tag + ">")
			open = tag
		}
	}
	code := false
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\n")
		trimmed := strings.TrimLeft(line, " ")
		switch number, item, _ := strings.Cut(trimmed, ". "); {
		case strings.HasPrefix(trimmed, "```"):
			end()
			if code = !code; code {
				b.WriteString("<pre><code>")
			} else {
				b.WriteString("</code></pre>\n")
			}
		case code:
			b.WriteString(html.EscapeString(line) + "\n")
		case trimmed == "":
			if open == "p" {
				end()
			}
		case strings.HasPrefix(line, "# "):
			end()
			b.WriteString("<h2>" + inline(line[2:]) + "</h2>\n")
		case strings.HasPrefix(line, "## "):
			end()
			b.WriteString("<h3>" + inline(line[3:]) + "</h3>\n")
		case strings.HasPrefix(trimmed, "- "):
			begin("ul")
			b.WriteString("<li>" + inline(trimmed[2:]))
		case len(number) == 1 && number[0] >= '1' && number[0] <= '9' && item != "":
			begin("ol")
			b.WriteString(`<li value="` + number + `">` + inline(item))
		case open == "ul" || open == "ol":
			if line == trimmed { // not indented: the list is over
				begin("p")
			}
			b.WriteString(" " + inline(trimmed))
		default:
			begin("p")
			b.WriteString(inline(trimmed) + "\n")
		}
	}
	end()
	title, _, _ := strings.Cut(strings.TrimPrefix(string(text), "# "), "\n")
	return []byte(`<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>` +
		html.EscapeString(title) + ` - Opsplane runbook</title><style>` + docsStyle + `</style></head><body><header><p><a href="/docs">API</a> <a href="` +
		runbooksPath + `">Runbooks</a></p></header><main>` + b.String() + "</main></body></html>\n")
}

var (
	inlineCode = regexp.MustCompile("`([^`]+)`")
	emphasis   = regexp.MustCompile(`\*([^*\s][^*]*)\*`)
	pageLink   = regexp.MustCompile(`\[([^\]]+)\]\((/[^)\s"]*)\)`)
)

// inline makes HTML of one line's text. What is in code is left as it is.
func inline(s string) string {
	var b strings.Builder
	at := 0
	plain := func(s string) {
		s = pageLink.ReplaceAllString(html.EscapeString(s), `<a href="$2">$1</a>`)
		b.WriteString(emphasis.ReplaceAllString(s, "<em>$1</em>"))
	}
	for _, m := range inlineCode.FindAllStringSubmatchIndex(s, -1) {
		plain(s[at:m[0]])
		b.WriteString("<code>" + html.EscapeString(s[m[2]:m[3]]) + "</code>")
		at = m[1]
	}
	plain(s[at:])
	return b.String()
}
