package alert

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestAboutDevices: an alert about a device says where it is and what the driver
// reported, and is the same alert, of the same group, wherever the device goes.
func TestAboutDevices(t *testing.T) {
	t.Parallel()
	xid := func(at time.Duration, more ...any) *Vars {
		e := fact(at, "device.xid", "GPU-aaaa", append([]any{"class", "hardware"}, more...)...)
		e.Sequence = int64(at/time.Second) + 1
		e.Subject.Kind = "device"
		return NewVars(&e, nil)
	}
	for _, c := range []struct {
		name string
		more []any
		node string
		want string
	}{
		{"told", []any{"xid", 79, "node", "gpu-node-17", "node_uid", "u-17"}, "gpu-node-17", "Device GPU-aaaa of node gpu-node-17 reported XID 79, which is fatal"},
		{"not told", nil, "", "Device GPU-aaaa of node (unknown) reported XID (unknown), which is fatal"},
		{"no text", []any{"xid", []any{79}, "node", map[string]any{}}, "", "Device GPU-aaaa of node (unknown) reported XID (unknown), which is fatal"},
		{"lines", []any{"xid", "7\n9", "node", "{subject}"}, "{subject}", `Device GPU-aaaa of node {subject} reported XID 7\n9, which is fatal`},
	} {
		s := NewStream(testStream, NewSet(allShipped(t), nil), Position{}, nil)
		s.Judge(xid(0, c.more...), never)
		told := s.Take().Told
		if len(told) != 1 || told[0].Alert.Summary != c.want || told[0].Alert.Node != c.node || !cmp.Equal(told[0].Alert.Group, map[string]string{"device": told[0].Alert.Subject.ID}) {
			t.Errorf("%s: %+v", c.name, told)
		}
	}
	// The same device on another node, and with another XID: the same alert, told by the
	// last match; where it began stays.
	s := NewStream(testStream, NewSet(allShipped(t), nil), Position{}, nil)
	s.Judge(xid(0, "xid", 79, "node", "a", "node_uid", "u-a"), never)
	s.Judge(xid(time.Minute, "xid", 48, "node", "b", "node_uid", "u-b"), never)
	was := s.Take()
	again := NewStream(testStream, NewSet(allShipped(t), nil), s.Position, was.Keep)
	again.Tick(t0.Add(25*time.Hour), never)
	told := append(was.Told, again.Take().Told...)
	if len(told) != 2 || told[1].Alert.ID != told[0].Alert.ID || told[1].Alert.Node != "a" || told[1].Alert.NodeUID != "u-a" ||
		!strings.Contains(told[1].Alert.Summary, "of node b reported XID 48,") || !cmp.Equal(told[1].Alert.Labels, told[0].Alert.Labels) {
		t.Errorf("told %+v", told)
	}
}

// TestEvidenceSaysWhenItHappened: though windows take what is told late for later.
func TestEvidenceSaysWhenItHappened(t *testing.T) {
	t.Parallel()
	e := fact(2*time.Hour, "x.a", "n1")
	e.Timestamp, e.Sequence = t0, 1
	s := NewStream(testStream, NewSet([]*Compiled{rule(t, "name: x\non: [x.a]\n")}, nil), Position{}, nil)
	s.Judge(NewVars(&e, nil), never)
	if told := s.Take().Told; len(told) != 1 || !told[0].Alert.Evidence[0].At.Equal(t0) {
		t.Errorf("told %+v", told)
	}
}
