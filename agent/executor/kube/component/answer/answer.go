// Package answer is what the program in an upgrade Job tells the agent: one JSON
// document in its container's termination message, so that the agent needs no
// right to read logs. The program is agent/executor/helm, the reader is
// agent/executor/kube/component.
//
// An answer names versions, revisions, resources and places in a chart. Values,
// manifests and what a chart's templates print never enter it: they may hold
// secrets, and they stay in the cluster.
package answer

import (
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"
)

// MaxBytes is what Kubernetes keeps of a termination message.
// https://kubernetes.io/docs/tasks/debug/debug-application/determine-reason-pod-failure/
const MaxBytes = 4096

// Version is the version of this document.
const Version = 1

// Verbs of the program.
const (
	Preflight = "preflight" // reads, renders and compares; changes nothing
	Upgrade   = "upgrade"
	Status    = "status" // reads Helm's history
)

// Codes of answers; an empty one is success.
const (
	ChartNotFound     = "chart_not_found"
	ChartUnavailable  = "chart_unavailable" // its repository or registry does not answer
	ChartInvalid      = "chart_invalid"     // it cannot be loaded, or its templates not be rendered
	Incompatible      = "incompatible_kubernetes"
	ReleaseNotFound   = "release_not_found"
	ReleasePending    = "release_pending"
	ValuesInvalid     = "values_invalid"
	UpgradeFailed     = "upgrade_failed"
	Forbidden         = "forbidden"
	StaleGeneration   = "stale_generation"
	Unavailable       = "api_unavailable"
	Internal          = "internal"
	InvalidArguments  = "invalid_arguments"
	WarningCRDs       = "crds_changed"
	WarningHooks      = "hooks"
	WarningNoWorkload = "no_workloads"
)

// Answer is the document.
type Answer struct {
	Version int    `json:"version"`
	Verb    string `json:"verb"`
	Code    string `json:"code,omitempty"`
	Detail  string `json:"detail,omitempty"`
	// From and To are chart versions; AppTo is the new chart's appVersion.
	From  string `json:"from,omitempty"`
	To    string `json:"to,omitempty"`
	AppTo string `json:"app_to,omitempty"`
	// Already: the release is at the version; nothing was changed.
	Already bool `json:"already,omitempty"`
	// RolledBack: the upgrade failed and the release is back at From.
	RolledBack bool      `json:"rolled_back,omitempty"`
	Warnings   []Warning `json:"warnings,omitempty"`
	// Release is the newest revision in Helm's history, when the program ended.
	Release *Release `json:"release,omitempty"`
	// Own is the newest revision that this run of the operation made.
	Own *Release `json:"own,omitempty"`
}

// Release is one revision of a release.
type Release struct {
	Revision   int    `json:"revision"`
	Status     string `json:"status"` // Helm's: deployed, failed, pending-upgrade, superseded, ...
	Chart      string `json:"chart"`  // its version
	App        string `json:"app,omitempty"`
	Operation  string `json:"operation,omitempty"` // that made it
	Run        int    `json:"run,omitempty"`
	Generation int64  `json:"generation,omitempty"`
}

// Warning is something that does not stop an upgrade.
type Warning struct {
	Code   string `json:"code"`
	Detail string `json:"detail"`
}

// Encode writes the answer in at most MaxBytes, shortening what is longest.
func (a Answer) Encode() []byte {
	a.Version = Version
	a.Warnings = append([]Warning(nil), a.Warnings...)
	for limit := 2048; ; limit /= 2 {
		a.Detail = Cut(a.Detail, limit)
		for i := range a.Warnings {
			a.Warnings[i].Detail = Cut(a.Warnings[i].Detail, limit/2)
		}
		b, err := json.Marshal(a)
		if err == nil && len(b) <= MaxBytes {
			return b
		}
		if limit < 64 {
			a.Warnings = nil // hundreds of them
			limit = 128
		}
	}
}

// ErrNone: there is no answer, or one that cannot be read.
var ErrNone = errors.New("the program left no answer")

// Decode reads a termination message.
func Decode(message string) (Answer, error) {
	var a Answer
	if message == "" {
		return a, ErrNone
	}
	if err := json.Unmarshal([]byte(message), &a); err != nil {
		return a, fmt.Errorf("%w: %w", ErrNone, err)
	}
	if a.Version != Version {
		return a, fmt.Errorf("%w of version %d: its version is %d", ErrNone, Version, a.Version)
	}
	return a, nil
}

// Cut shortens text to at most n bytes, on a rune boundary.
func Cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}
