package httpapi

import (
	"net/http"
	"time"
)

// Server returns an HTTP server for the handler with bounds on what a client
// can hold: headers within 10 s and 32 KiB, an idle connection for two minutes.
// Bodies and answers are bounded by the API's handler, which knows how long a
// request may wait. The API's event streams end when the server begins to shut
// down.
func Server(h http.Handler, addr string) *http.Server {
	s := &http.Server{
		Addr:              addr,
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    32 << 10,
	}
	if a, ok := h.(*API); ok {
		s.RegisterOnShutdown(a.EndStreams)
	}
	return s
}
