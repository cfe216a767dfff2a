// Package holder finds out who is on a device: the processes that the driver
// names, those that have its file open, which the driver does not know of
// (nvidia-persistenced, a device plugin), and the pods that the kubelet gave it
// to; and to which pod a process belongs.
package holder

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/opsplane/opsplane/agent/executor/host/report"
)

// Options say where to look. An empty path is not looked at.
type Options struct {
	// Proc is the host's /proc: in a pod, one with hostPID.
	Proc string
	// PodLogs is the kubelet's folder whose entries are namespace_name_uid
	// (/var/log/pods): the way from a pod's UID to its name.
	PodLogs string
	// PodResources is the kubelet's socket
	// (/var/lib/kubelet/pod-resources/kubelet.sock).
	PodResources string
}

// Scan is what was found.
type Scan struct {
	// Open are the processes that have /dev/nvidia<minor> open.
	Open map[int][]Proc
	// All are all processes that were seen, by id.
	All map[int]Proc
	// Fabric tells that the fabric manager runs, Switches that the host has
	// NVSwitches.
	Fabric, Switches bool
	// Allocated are the pods that the kubelet gave devices to.
	Allocated []Allocation
	// Unread names what could not be looked at.
	Unread []string
}

// Proc is a process.
type Proc struct {
	PID  int
	Name string // as the kernel keeps it: 15 bytes; any process may call itself so
	Pod  *report.Pod
	// Self: it runs this program's file.
	Self bool
}

// Allocation is one device that the kubelet gave to a container.
type Allocation struct {
	Device string // as its plugin names it: a UUID, or the minor of a DRA driver
	Pod    report.Pod
}

var (
	deviceFile = regexp.MustCompile(`^/dev/nvidia(\d+)$`)
	// podCgroup finds the pod in a cgroup's path, as either driver of the kubelet
	// writes it: /kubepods/burstable/pod<uid>/<container> and
	// /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid, with _ for
	// ->.slice/cri-containerd-<container>.scope. A static pod's UID there is a hash.
	// https://kubernetes.io/docs/concepts/architecture/cgroups/
	podCgroup = regexp.MustCompile(`(?:^|[/-])pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice|/|$)`)
)

// fabricManager is nv-fabricmanager as the kernel cuts its name.
const fabricManager = "nv-fabricmanage"

// Look scans the host. What cannot be read is told in Unread; an error is the end
// of ctx or a /proc that is none.
func Look(ctx context.Context, o Options) (Scan, error) {
	s := Scan{Open: map[int][]Proc{}, All: map[int]Proc{}}
	names := map[string]report.Pod{}
	if o.PodLogs != "" {
		var err error
		if names, err = podNames(o.PodLogs); err != nil {
			s.Unread = append(s.Unread, "names of pods: "+err.Error())
		}
	}
	if o.Proc != "" {
		if err := s.processes(ctx, o.Proc, names); err != nil {
			return s, err
		}
	}
	if o.PodResources != "" {
		list, err := allocations(ctx, o.PodResources)
		if err != nil {
			s.Unread = append(s.Unread, "the kubelet's allocations: "+err.Error())
		}
		s.Allocated = list
	}
	return s, nil
}

func (s *Scan) processes(ctx context.Context, proc string, names map[string]report.Pod) error {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return fmt.Errorf("list processes: %w", err)
	}
	hidden := 0
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		dir := filepath.Join(proc, e.Name())
		comm, err := os.ReadFile(filepath.Join(dir, "comm"))
		if err != nil {
			continue // it ended
		}
		p := Proc{PID: pid, Name: strings.TrimSpace(string(comm))}
		if p.Name == fabricManager {
			s.Fabric = true
		}
		minors, err := openDevices(filepath.Join(dir, "fd"))
		if errors.Is(err, os.ErrPermission) {
			hidden++
		}
		p.Pod = podOf(filepath.Join(dir, "cgroup"), names)
		p.Self = isSelf(filepath.Join(dir, "exe"))
		s.All[pid] = p
		if pid == os.Getpid() {
			continue
		}
		for _, m := range minors {
			if m == switchMinor {
				s.Switches = true
				continue
			}
			s.Open[m] = append(s.Open[m], p)
		}
	}
	if hidden > 0 {
		s.Unread = append(s.Unread, fmt.Sprintf("open files of %d processes (root is needed)", hidden))
	}
	return nil
}

// isSelf tells whether a process runs a file of this program's name. The file itself
// is not compared: a container has its own, and on a host an upgrade puts another in
// its place, which the kernel tells after the name.
// https://man7.org/linux/man-pages/man5/proc_pid_exe.5.html
func isSelf(exe string) bool {
	link, err := os.Readlink(exe)
	return err == nil && filepath.Base(strings.TrimSuffix(link, " (deleted)")) == Self
}

// switchMinor stands for an NVSwitch among device numbers.
const switchMinor = -1

// openDevices lists the minors of /dev/nvidia<minor> that a process has open,
// each once.
func openDevices(dir string) ([]int, error) {
	fds, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var out []int
	seen := map[int]bool{}
	for _, fd := range fds {
		link, err := os.Readlink(filepath.Join(dir, fd.Name()))
		if err != nil {
			continue
		}
		minor := switchMinor
		if m := deviceFile.FindStringSubmatch(link); m != nil {
			if minor, err = strconv.Atoi(m[1]); err != nil {
				continue
			}
		} else if !strings.HasPrefix(link, "/dev/nvidia-nvswitch") {
			continue
		}
		if !seen[minor] {
			seen[minor] = true
			out = append(out, minor)
		}
	}
	return out, nil
}

// podOf reads which pod a process runs in, nil: none.
func podOf(cgroup string, names map[string]report.Pod) *report.Pod {
	b, err := os.ReadFile(cgroup)
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(b)) {
		path := strings.TrimSpace(line[strings.LastIndexByte(line, ':')+1:])
		if m := podCgroup.FindStringSubmatch(path); m != nil {
			uid := strings.ReplaceAll(m[1], "_", "-")
			p, ok := names[uid]
			if !ok {
				p = report.Pod{UID: uid}
			}
			return &p
		}
	}
	return nil
}

// podNames reads the kubelet's folder of logs: namespace_name_uid.
func podNames(dir string) (map[string]report.Pod, error) {
	out := map[string]report.Pod{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return out, err
	}
	for _, e := range entries {
		if part := strings.Split(e.Name(), "_"); len(part) == 3 {
			out[part[2]] = report.Pod{Namespace: part[0], Name: part[1], UID: part[2]}
		}
	}
	return out, nil
}
