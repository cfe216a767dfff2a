package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// ErrInvalid is what every document that cannot be believed wraps.
var ErrInvalid = errors.New("invalid report")

var (
	uuidForm = regexp.MustCompile(`(?i)^(?:gpu-)?([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})$`)
	pciForm  = regexp.MustCompile(`(?i)^(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?$`)
)

// UUID is the one spelling of a GPU's UUID: GPU-<lower case>. NVIDIA's tools
// print it with and without its prefix and in either case.
func UUID(s string) (string, bool) {
	m := uuidForm.FindStringSubmatch(strings.TrimSpace(s))
	if m == nil {
		return "", false
	}
	return "GPU-" + strings.ToLower(m[1]), true
}

// PCI is the one spelling of a bus id, sysfs's: 0000:3b:00.0. NVML writes the
// domain in eight digits and upper case, the driver's log leaves the function
// out, and people the domain.
func PCI(s string) (string, bool) {
	m := pciForm.FindStringSubmatch(strings.TrimSpace(s))
	if m == nil {
		return "", false
	}
	domain, fn := strings.TrimLeft(strings.ToLower(m[1]), "0"), m[4]
	if len(domain) < 4 {
		domain = strings.Repeat("0", 4-len(domain)) + domain
	}
	if fn == "" {
		fn = "0"
	}
	return fmt.Sprintf("%s:%s:%s.%s", domain, strings.ToLower(m[2]), strings.ToLower(m[3]), fn), true
}

// ParseAnswer reads an answer. It comes from a container on some node: nothing
// in it is believed past its form. Errors wrap ErrInvalid.
func ParseAnswer(b []byte) (Answer, error) {
	var a Answer
	if len(b) > MaxMessageBytes {
		return a, fmt.Errorf("%w: an answer of %d bytes, the limit is %d", ErrInvalid, len(b), MaxMessageBytes)
	}
	if err := json.Unmarshal(b, &a); err != nil {
		return Answer{}, fmt.Errorf("%w: read answer: %w", ErrInvalid, err)
	}
	var c check
	c.version(a.Version)
	c.oneOf("verb", a.Verb, VerbPreflight, VerbReset, VerbVerify, VerbMark, VerbPods)
	c.text("operation", a.Operation, MaxCodeBytes)
	c.text("node", a.Node, MaxNameBytes)
	c.text("boot_id", a.BootID, MaxCodeBytes)
	c.code("code", a.Code)
	c.text("detail", a.Detail, MaxTextBytes)
	c.text("driver", a.Driver, MaxCodeBytes)
	c.oneOf("fabric", a.Fabric, FabricNone, FabricRunning, FabricStopped)
	c.oneOf("source", a.Source, "", SourceNVML, SourceRecorded)
	c.count("run", int64(a.Run))
	c.count("generation", a.Generation)
	c.count("took_ms", a.Took)
	if !a.OK && a.Code == "" {
		c.fail("code", "is missing of an answer that is not ok")
	}
	if a.Mark != nil {
		c.oneOf("mark.state", a.Mark.State, MarkNone, MarkStarted, MarkDone, MarkRefused)
		c.text("mark.operation", a.Mark.Operation, MaxCodeBytes)
		c.text("mark.detail", a.Mark.Detail, MaxTextBytes)
		c.text("mark.boot_id", a.Mark.BootID, MaxCodeBytes)
		c.code("mark.code", a.Mark.Code)
		c.count("mark.run", int64(a.Mark.Run))
		c.count("mark.generation", a.Mark.Generation)
	}
	if a.Device != nil {
		c.device("device", a.Device)
	}
	if err := errors.Join(c.errs...); err != nil {
		return Answer{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return a, nil
}

// ParseHost reads a host's report. Errors wrap ErrInvalid.
func ParseHost(b []byte) (Host, error) {
	var h Host
	if len(b) > MaxReportBytes {
		return h, fmt.Errorf("%w: a report of %d bytes, the limit is %d", ErrInvalid, len(b), MaxReportBytes)
	}
	if err := json.Unmarshal(b, &h); err != nil {
		return Host{}, fmt.Errorf("%w: read report: %w", ErrInvalid, err)
	}
	var c check
	c.version(h.Version)
	if h.Node == "" {
		c.fail("node", "is missing")
	}
	c.text("node", h.Node, MaxNameBytes)
	c.text("hostname", h.Hostname, MaxNameBytes)
	c.text("boot_id", h.BootID, MaxCodeBytes)
	c.text("driver", h.Driver, MaxCodeBytes)
	c.code("code", h.Code)
	c.text("detail", h.Detail, MaxTextBytes)
	c.oneOf("source", h.Source, SourceNVML, SourceRecorded)
	c.oneOf("fabric", h.Fabric, FabricNone, FabricRunning, FabricStopped)
	c.most("devices", len(h.Devices), MaxDevices)
	seen := map[string]bool{}
	for i := range h.Devices[:min(len(h.Devices), MaxDevices)] {
		at := fmt.Sprintf("devices[%d]", i)
		c.device(at, &h.Devices[i])
		if seen[h.Devices[i].UUID] {
			c.fail(at+".uuid", "is there twice")
		}
		seen[h.Devices[i].UUID] = true
	}
	if err := errors.Join(c.errs...); err != nil {
		return Host{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return h, nil
}

// check collects what is wrong with a document, a bounded number of times.
type check struct{ errs []error }

func (c *check) fail(field, format string, args ...any) {
	if len(c.errs) < 8 {
		c.errs = append(c.errs, fmt.Errorf("%s: %s", field, fmt.Sprintf(format, args...)))
	}
}

func (c *check) version(v int) {
	if v != Version {
		c.fail("version", "%d, this agent reads %d", v, Version)
	}
}

func (c *check) oneOf(field, v string, allowed ...string) {
	if !slices.Contains(allowed, v) {
		c.fail(field, "%q is none of %s", cut(v, 32), strings.Join(allowed, ", "))
	}
}

func (c *check) text(field, s string, most int) {
	switch {
	case len(s) > most:
		c.fail(field, "%d bytes, the limit is %d", len(s), most)
	case !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl):
		c.fail(field, "holds control characters")
	}
}

var codeForm = regexp.MustCompile(`^[a-z0-9_]*$`)

func (c *check) code(field, s string) {
	if c.text(field, s, MaxCodeBytes); !codeForm.MatchString(s) {
		c.fail(field, "%q is no code", cut(s, 32))
	}
}

func (c *check) count(field string, n int64) {
	if n < 0 || n > maxCount {
		c.fail(field, "%d is not between 0 and %d", n, int64(maxCount))
	}
}

func (c *check) most(field string, n, most int) {
	if n > most {
		c.fail(field, "%d of them, the limit is %d", n, most)
	}
}

func (c *check) device(at string, d *Device) {
	if u, ok := UUID(d.UUID); !ok || u != d.UUID {
		c.fail(at+".uuid", "%q is not of the form GPU-<lower-case uuid>", cut(d.UUID, 64))
	}
	if p, ok := PCI(d.PCI); d.PCI != "" && (!ok || p != d.PCI) {
		c.fail(at+".pci", "%q is not of the form 0000:3b:00.0", cut(d.PCI, 32))
	}
	c.count(at+".index", int64(d.Index))
	c.text(at+".product", d.Product, MaxNameBytes)
	c.text(at+".architecture", d.Architecture, MaxCodeBytes)
	c.text(at+".virtual", d.Virtual, MaxCodeBytes)
	c.text(at+".detail", d.Detail, MaxTextBytes)
	c.oneOf(at+".health", d.Health, HealthOK, HealthDegraded, HealthUnusable)
	c.code(at+".recovery", d.Recovery)
	if d.MIG != nil {
		c.oneOf(at+".mig.current", d.MIG.Current, "enabled", "disabled")
		c.oneOf(at+".mig.pending", d.MIG.Pending, "enabled", "disabled")
	}
	c.most(at+".peers", len(d.Peers), MaxPeers)
	for _, p := range d.Peers[:min(len(d.Peers), MaxPeers)] {
		c.text(at+".peers", p, MaxCodeBytes)
	}
	c.most(at+".holders", len(d.Holders), MaxHolders)
	for i := range d.Holders[:min(len(d.Holders), MaxHolders)] {
		c.holder(fmt.Sprintf("%s.holders[%d]", at, i), &d.Holders[i])
	}
	c.most(at+".xids", len(d.XIDs), MaxXIDs)
	for i := range d.XIDs[:min(len(d.XIDs), MaxXIDs)] {
		x := &d.XIDs[i]
		at := fmt.Sprintf("%s.xids[%d]", at, i)
		c.count(at+".code", int64(x.Code))
		c.count(at+".count", int64(x.Count))
		c.code(at+".class", x.Class)
		c.text(at+".text", x.Text, MaxTextBytes)
	}
}

func (c *check) holder(at string, h *Holder) {
	c.code(at+".kind", h.Kind)
	c.text(at+".name", h.Name, MaxCodeBytes)
	c.most(at+".pids", len(h.PIDs), MaxPIDs)
	c.count(at+".count", int64(h.Count))
	if p := h.Pod; p != nil {
		c.text(at+".pod.namespace", p.Namespace, MaxNameBytes)
		c.text(at+".pod.name", p.Name, MaxNameBytes)
		c.text(at+".pod.uid", p.UID, MaxCodeBytes)
		c.text(at+".pod.container", p.Container, MaxNameBytes)
		if p.UID == "" && p.Name == "" {
			c.fail(at+".pod", "has neither a name nor a uid")
		}
	}
}
