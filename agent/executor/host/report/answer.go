package report

import "time"

// Verbs of the program that answer.
const (
	VerbPreflight = "preflight"
	VerbReset     = "reset"
	VerbVerify    = "verify"
	VerbMark      = "mark" // what the host remembers of a run's reset; changes nothing
	VerbPods      = "pods"
)

// Codes of answers that are not OK.
const (
	CodeBusy         = "device_busy"
	CodeMIG          = "mig_change_pending"
	CodeNotSupported = "not_supported"
	CodePeers        = "nvlink_peers"
	CodeReboot       = "needs_reboot"
	CodeGone         = "device_gone"      // the host has no such device
	CodeNoDriver     = "no_driver"        // no NVML: no driver, or a build without it
	CodeStale        = "stale_generation" // a newer generation was here
	CodeInProgress   = "in_progress"      // another run's reset is under way
	CodeUnknown      = "reset_unknown"    // a reset was begun and nobody knows how it ended
	CodeFailed       = "reset_failed"     // the driver's tool failed and did nothing that it tells of
	CodeUnusable     = "device_unusable"  // it is there and does not work
	CodeErrors       = "errors_since"     // it works and reported errors since the reset
	CodeHost         = "host_error"       // the host could not be asked or could not remember
	CodeInvalid      = "invalid"          // the question was
)

// States of a Mark.
const (
	MarkNone    = "none"    // this run has not begun a reset here
	MarkStarted = "started" // it was begun; how it ended is not on record
	MarkDone    = "done"
	MarkRefused = "refused" // it was begun and the driver refused: nothing was reset
)

// Mark is what the host remembers of the newest reset of a device: its
// high-water mark. An older generation of the same operation is refused, and a
// run resets once.
type Mark struct {
	State      string    `json:"state"`
	Operation  string    `json:"operation,omitempty"`
	Run        int       `json:"run,omitempty"`
	Generation int64     `json:"generation,omitempty"`
	Started    time.Time `json:"started,omitzero"`
	Done       time.Time `json:"done,omitzero"`
	BootID     string    `json:"boot_id,omitempty"`
	Code       string    `json:"code,omitempty"` // of a refused one
	Detail     string    `json:"detail,omitempty"`
}

// Answer is what the program answers to one question.
type Answer struct {
	Version    int    `json:"version"`
	Verb       string `json:"verb"`
	Operation  string `json:"operation,omitempty"`
	Run        int    `json:"run,omitempty"`
	Generation int64  `json:"generation,omitempty"`
	// Node is the name that the question gave, and BootID the host's.
	Node   string `json:"node,omitempty"`
	BootID string `json:"boot_id,omitempty"`
	// Source is SourceNVML, or SourceRecorded: then no GPU was touched. Empty:
	// nothing was asked.
	Source string `json:"source,omitempty"`
	// OK: preflight found nothing in the way, reset was carried out (or was
	// before, by the same run: Already), verify found the device usable, mark was
	// read.
	OK      bool   `json:"ok"`
	Already bool   `json:"already,omitempty"`
	Code    string `json:"code,omitempty"`
	Detail  string `json:"detail,omitempty"`
	// Device is the device as it is now, nil when it could not be read.
	Device *Device `json:"device,omitempty"`
	Driver string  `json:"driver,omitempty"`
	Fabric string  `json:"fabric,omitempty"`
	Mark   *Mark   `json:"mark,omitempty"`
	// XIDsRead: the kernel's log was read for XIDs. Without, none is known.
	XIDsRead bool `json:"xids_read,omitempty"`
	// Took is how long the driver's reset took, in milliseconds.
	Took int64     `json:"took_ms,omitempty"`
	At   time.Time `json:"at"`
	// Cut names what was left out to keep to MaxMessageBytes.
	Cut []string `json:"cut,omitempty"`
}
