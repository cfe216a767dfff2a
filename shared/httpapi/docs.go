package httpapi

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"net/http"
	"strings"
	"sync"
)

//go:embed docs.html
var docsPage string

//go:embed docs.js
var docsScript string

//go:embed docs.css
var docsStyle string

// docsRoutes serve the OpenAPI document and a page that shows it. The page asks
// no other host for anything.
func (a *API) docsRoutes() {
	document := sync.OnceValues(func() ([]byte, error) { return openAPI(a.cfg.Version) })
	a.handle(route{pattern: "GET /openapi.json", public: true}, func(w http.ResponseWriter, r *http.Request) {
		b, err := document()
		if err != nil {
			a.refuse(w, requestOf(r.Context()), err)
			return
		}
		w.Header().Set("Content-Type", "application/openapi+json")
		_, _ = w.Write(b) // the client is gone: nobody is left to tell
	})
	html := strings.NewReplacer("/*style*/", docsStyle, "/*script*/", docsScript).Replace(docsPage)
	policy := "default-src 'none'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; script-src '" +
		hashOf(docsScript) + "'; style-src '" + hashOf(docsStyle) + "'"
	a.handle(route{pattern: "GET /docs", public: true}, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Content-Security-Policy", policy)
		_, _ = w.Write([]byte(html))
	})
}

func hashOf(s string) string {
	h := sha256.Sum256([]byte(s))
	return "sha256-" + base64.StdEncoding.EncodeToString(h[:])
}
