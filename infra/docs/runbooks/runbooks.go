// Package runbooks holds the page of each shipped rule: what an alert of it means,
// what to look at, what to do. The API serves them at /docs/runbooks/NAME.md.
package runbooks

import (
	"embed"
	"io/fs"
	"slices"
)

//go:embed *.md
var pages embed.FS

// Page returns the page of a file name such as "fatal-xid.md", in Markdown.
func Page(file string) (text []byte, ok bool) {
	text, err := pages.ReadFile(file)
	return text, err == nil
}

// Files lists the pages by name.
func Files() []string {
	entries, err := fs.ReadDir(pages, ".")
	if err != nil {
		panic(err) // it is part of the program
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	slices.Sort(out)
	return out
}
