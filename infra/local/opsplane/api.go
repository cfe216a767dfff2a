package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/opsplane/opsplane/infra/local"
)

// apiFlags say whose API is called, and as whom.
type apiFlags struct {
	API       string `help:"URL of the API." name:"api" default:"http://127.0.0.1:8080" env:"OPSPLANE_API" placeholder:"URL"`
	TokenFile string `help:"File with an administrator's token (else OPSPLANE_TOKEN)." type:"path" placeholder:"FILE"`
	CAFile    string `help:"CA file (PEM) to trust besides the system's." type:"path" name:"ca-file" placeholder:"FILE"`
	Insecure  bool   `help:"Allow http:// to another machine: anybody on the way can read the token."`
}

// tokenEnv is where the token is read when no file is named. It is never an
// argument: those are public on the machine.
const tokenEnv = "OPSPLANE_TOKEN"

const (
	apiTimeout     = 35 * time.Second // an API on AWS answers within 30
	maxAPIAnswer   = 16 << 20
	maxTokenLength = 8 << 10
)

// api calls a plane's HTTP API.
type api struct {
	base, token string
	client      *http.Client
}

func (f *apiFlags) open() (*api, error) {
	u, err := url.Parse(f.API)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" {
		return nil, errors.New("--api must be http(s)://host[:port], without credentials and query")
	}
	if u.Scheme == "http" && !f.Insecure && !loopback(u.Hostname()) {
		return nil, errors.New("--api is http:// on another machine, so the token would be sent in the clear: use https://, or accept it with --insecure")
	}
	token, err := f.token()
	if err != nil {
		return nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	if f.CAFile != "" {
		pem, err := os.ReadFile(f.CAFile)
		if err != nil {
			return nil, fmt.Errorf("read CA file: %w", err)
		}
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}
		if !pool.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("read CA file %s: no certificate in it", f.CAFile)
		}
		transport.TLSClientConfig.RootCAs = pool
	}
	return &api{base: strings.TrimRight(f.API, "/"), token: token, client: &http.Client{Transport: transport, Timeout: apiTimeout,
		// A redirect would carry the token somewhere else.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}, nil
}

func (f *apiFlags) token() (string, error) {
	token, from := os.Getenv(tokenEnv), tokenEnv
	if f.TokenFile != "" {
		b, err := os.ReadFile(f.TokenFile)
		if err != nil {
			return "", fmt.Errorf("read token: %w", err)
		}
		token, from = string(b), f.TokenFile
	}
	token = strings.TrimSpace(token)
	switch {
	case token == "" && f.TokenFile == "":
		return "", errors.New("no token: name --token-file or set " + tokenEnv)
	case token == "" || len(token) > maxTokenLength || strings.ContainsAny(token, "\r\n \t"):
		return "", fmt.Errorf("read token: %s does not hold one token", from)
	}
	return token, nil
}

func loopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// call returns the answer's body. An answer that is no success is an error that
// says what the API says.
func (a *api) call(ctx context.Context, method, path string, in any) ([]byte, error) {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return nil, fmt.Errorf("encode request: %w", err)
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, a.base+path, body)
	if err != nil {
		return nil, fmt.Errorf("call the API: %w", err)
	}
	req.Header.Set("Authorization", "Bearer "+a.token)
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "opsplane/"+local.Version)
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := a.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("call the API: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAPIAnswer+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the API's answer: %w", err)
	case len(b) > maxAPIAnswer:
		return nil, fmt.Errorf("read the API's answer: more than %d bytes", maxAPIAnswer)
	case resp.StatusCode/100 != 2:
		return nil, refusal(resp.StatusCode, b)
	}
	return b, nil
}

// refusal puts an answer into words: a problem document's (RFC 9457), or what a
// gateway says by itself.
func refusal(status int, body []byte) error {
	var p struct {
		Code    string `json:"error_code"`
		Title   string `json:"title"`
		Detail  string `json:"detail"`
		Message string `json:"message"`
		Errors  []struct {
			Pointer string `json:"pointer"`
			Detail  string `json:"detail"`
		} `json:"errors"`
	}
	_ = json.Unmarshal(body, &p) // what is none of both has its status alone
	says := strings.TrimSpace(p.Code + " " + p.Detail)
	for _, other := range []string{p.Title, p.Message, http.StatusText(status)} {
		if says == "" {
			says = other
		}
	}
	for _, e := range p.Errors {
		says += "; " + e.Pointer + ": " + e.Detail
	}
	return fmt.Errorf("the API answers %d: %s", status, says)
}
