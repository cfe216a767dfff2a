package report

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Message is the answer as JSON of at most MaxMessageBytes. What does not fit is
// cut in this order: the XIDs' texts, the peers past eight, the XIDs that are no
// cause and those past the fourth, holders that are no pods past the fourth,
// pods past the twelfth and then past the eighth, all XIDs, the detail past 256
// bytes, the device. What was cut is named in Cut.
func (a Answer) Message() []byte {
	a.Version = Version
	a.bound()
	b := encode(a)
	for _, c := range cuts {
		if len(b) <= MaxMessageBytes {
			return b
		}
		if a.Device != nil {
			d := *a.Device // the caller's is left alone
			a.Device = &d
		}
		if c.do(&a) {
			a.Cut = append(a.Cut[:len(a.Cut):len(a.Cut)], c.name)
		}
		b = encode(a)
	}
	if len(b) > MaxMessageBytes { // names at their longest, all of them
		b = encode(Answer{Version: Version, Verb: a.Verb, Operation: a.Operation, Run: a.Run, Generation: a.Generation,
			Source: a.Source, XIDsRead: a.XIDsRead, OK: a.OK, Already: a.Already, Code: a.Code, Detail: cut(a.Detail, 256), At: a.At, Cut: []string{"everything else"}})
	}
	return b
}

// cuts are the steps in which an answer is made smaller; each tells whether it
// took something away.
var cuts = []struct {
	name string
	do   func(a *Answer) bool
}{
	{"xid texts", func(a *Answer) bool { return a.xids(func(x *XID) bool { x.Text = ""; return true }) }},
	{"peers", func(a *Answer) bool {
		if a.Device == nil || len(a.Device.Peers) <= 8 {
			return false
		}
		a.Device.Peers = a.Device.Peers[:8]
		return true
	}},
	{"xids that are no cause", func(a *Answer) bool {
		return a.xids(func(x *XID) bool { return x.VictimOf == 0 && (x.Class == ClassHardware || x.Class == ClassDriver) })
	}},
	{"xids past 4", func(a *Answer) bool {
		if a.Device == nil || len(a.Device.XIDs) <= 4 {
			return false
		}
		a.Device.XIDs = a.Device.XIDs[:4]
		return true
	}},
	{"holders that are no pods", func(a *Answer) bool { return a.holders(4, MaxHolders) }},
	{"holders past 12 pods", func(a *Answer) bool { return a.holders(4, 12) }},
	{"holders past 8 pods", func(a *Answer) bool { return a.holders(2, 8) }},
	{"xids", func(a *Answer) bool { return a.xids(func(*XID) bool { return false }) }},
	{"detail", func(a *Answer) bool {
		was := len(a.Detail)
		a.Detail = cut(a.Detail, 256)
		return len(a.Detail) < was
	}},
	{"device", func(a *Answer) bool {
		was := a.Device != nil
		a.Device = nil
		return was
	}},
}

// xids keeps those that keep says yes to; keep may change them.
func (a *Answer) xids(keep func(x *XID) bool) bool {
	if a.Device == nil || len(a.Device.XIDs) == 0 {
		return false
	}
	var kept []XID
	for _, x := range a.Device.XIDs {
		if keep(&x) {
			kept = append(kept, x)
		}
	}
	a.Device.XIDs = kept
	return true
}

// holders keeps the first of either sort.
func (a *Answer) holders(others, pods int) bool {
	if a.Device == nil {
		return false
	}
	var kept []Holder
	for _, h := range a.Device.Holders {
		if n := &others; *n > 0 || h.Pod != nil {
			if h.Pod != nil {
				n = &pods
			}
			if *n > 0 {
				*n--
				kept = append(kept, h)
			}
		}
	}
	less := len(kept) < len(a.Device.Holders)
	a.Device.Holders = kept
	return less
}

// Data is the report as JSON of at most MaxReportBytes. Texts and XIDs go first,
// then holders past the sixteenth of a device, then devices past MaxDevices.
func (h Host) Data() []byte {
	h.Version = Version
	devices := make([]Device, len(h.Devices))
	copy(devices, h.Devices)
	h.Devices = devices
	if len(h.Devices) > MaxDevices {
		h.Cut = append(h.Cut, fmt.Sprintf("%d devices", len(h.Devices)-MaxDevices))
		h.Devices = h.Devices[:MaxDevices]
	}
	h.Node, h.Hostname, h.BootID = cut(h.Node, MaxNameBytes), cut(h.Hostname, MaxNameBytes), cut(h.BootID, MaxCodeBytes)
	h.Driver, h.Code, h.Detail = cut(h.Driver, MaxCodeBytes), cut(h.Code, MaxCodeBytes), cut(h.Detail, MaxTextBytes)
	for i := range h.Devices {
		h.Cut = append(h.Cut, h.Devices[i].bound()...)
	}
	b := encode(h)
	for _, c := range []struct {
		name string
		do   func(d *Device)
	}{
		{"xid texts", func(d *Device) {
			d.XIDs = append([]XID(nil), d.XIDs...)
			for i := range d.XIDs {
				d.XIDs[i].Text = ""
			}
		}},
		{"xids", func(d *Device) { d.XIDs = nil }},
		{"holders", func(d *Device) { d.Holders = d.Holders[:min(len(d.Holders), 16)] }},
	} {
		if len(b) <= MaxReportBytes {
			break
		}
		for i := range h.Devices {
			c.do(&h.Devices[i])
		}
		h.Cut = append(h.Cut, c.name)
		b = encode(h)
	}
	return b
}

func encode(v any) []byte {
	b, _ := json.Marshal(v) // plain values always marshal
	return b
}

// bound keeps the answer's own texts to the limits.
func (a *Answer) bound() {
	a.Operation, a.Node, a.BootID = cut(a.Operation, MaxCodeBytes), cut(a.Node, MaxNameBytes), cut(a.BootID, MaxCodeBytes)
	a.Code, a.Detail, a.Driver = cut(a.Code, MaxCodeBytes), cut(a.Detail, MaxTextBytes), cut(a.Driver, MaxCodeBytes)
	if a.Mark != nil {
		m := *a.Mark
		m.Detail, m.Code, m.Operation = cut(m.Detail, 256), cut(m.Code, MaxCodeBytes), cut(m.Operation, MaxCodeBytes)
		a.Mark = &m
	}
	if a.Device != nil {
		d := *a.Device
		a.Cut = append(a.Cut[:len(a.Cut):len(a.Cut)], d.bound()...)
		a.Device = &d
	}
}

// bound keeps the device to the limits, in copies of its lists, and names what
// was cut.
func (d *Device) bound() (gone []string) {
	d.UUID, d.PCI, d.Product = cut(d.UUID, MaxCodeBytes), cut(d.PCI, MaxCodeBytes), cut(d.Product, MaxNameBytes)
	d.Detail, d.Architecture = cut(d.Detail, MaxTextBytes), cut(d.Architecture, MaxCodeBytes)
	if n := len(d.Peers); n > MaxPeers {
		d.Peers, gone = d.Peers[:MaxPeers], append(gone, fmt.Sprintf("%d peers of %s", n-MaxPeers, d.UUID))
	}
	if n := len(d.Holders); n > MaxHolders {
		d.Holders, gone = d.Holders[:MaxHolders], append(gone, fmt.Sprintf("%d holders of %s", n-MaxHolders, d.UUID))
	}
	if n := len(d.XIDs); n > MaxXIDs {
		d.XIDs, gone = d.XIDs[:MaxXIDs], append(gone, fmt.Sprintf("%d xids of %s", n-MaxXIDs, d.UUID))
	}
	d.Holders = append([]Holder(nil), d.Holders...)
	for i := range d.Holders {
		h := &d.Holders[i]
		h.Name, h.PIDs = cut(h.Name, MaxCodeBytes), h.PIDs[:min(len(h.PIDs), MaxPIDs)]
	}
	d.XIDs = append([]XID(nil), d.XIDs...)
	for i := range d.XIDs {
		d.XIDs[i].Text = cut(d.XIDs[i].Text, 160)
	}
	return gone
}

// cut takes control characters out of a text and bounds it, at a rune.
func cut(s string, most int) string {
	s = strings.ToValidUTF8(s, "?")
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, s)
	if len(s) <= most {
		return s
	}
	s = s[:most-3]
	for len(s) > 0 && !utf8.ValidString(s) {
		s = s[:len(s)-1]
	}
	return s + "..."
}
