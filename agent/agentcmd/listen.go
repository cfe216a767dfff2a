package agentcmd

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/opsplane/opsplane/agent/loop"
)

// listen serves the agent's health and metrics until the returned function is
// called. Nothing there needs a token, and nothing there is secret.
func listen(o options, agent *loop.Agent, opened *Opened, log *slog.Logger) (func(), error) {
	h := newHealth(agent, opened.Executor)
	reg, err := newRegistry(o, agent, h, opened.Collectors)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", o.listen)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", h.live)
	mux.HandleFunc("GET /readyz", h.ready)
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelError)}))
	server := &http.Server{
		Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	go func() {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.Error("health and metrics are not served any more", slog.Any("err", err))
		}
	}()
	log.Info("health and metrics are served", slog.String("address", l.Addr().String()))
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if server.Shutdown(ctx) != nil {
			_ = server.Close()
		}
	}, nil
}

// answer writes v as JSON.
func answer(w http.ResponseWriter, ok bool, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if !ok {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	_ = e.Encode(v) // whoever asked is gone
}

// inWords bounds and redacts an error's text.
func inWords(err error) string { return strings.TrimSpace(loop.Redact(err.Error(), 512)) }
