package httpapi

import (
	"net/http"
	"time"
)

// Server returns an HTTP server for the handler with bounds on what a client
// can hold: headers within 10 s and 32 KiB, a body within the handler's own
// deadline, an idle connection for two minutes. Answers have no bound of their
// own, since waits are long; their handlers bound them.
func Server(h http.Handler, addr string) *http.Server {
	return &http.Server{
		Addr:              addr,
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    32 << 10,
	}
}
