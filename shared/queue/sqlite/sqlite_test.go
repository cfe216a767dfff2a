package sqlite

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/queue"
	"github.com/opsplane/opsplane/shared/queue/queuetest"
)

func open(t testing.TB, path string) *DB {
	t.Helper()
	d, err := Open(t.Context(), Options{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func setup(t testing.TB) *DB {
	d := open(t, filepath.Join(t.TempDir(), "queue.db"))
	if err := d.Ensure(t.Context(), "q"); err != nil {
		t.Fatal(err)
	}
	return d
}

func TestConformance(t *testing.T) {
	t.Parallel()
	queuetest.Run(t, func(t *testing.T) queue.Queue {
		return open(t, filepath.Join(t.TempDir(), "queue.db"))
	}, queuetest.Options{})
}

func one(t testing.TB, d *DB, wait, visibility time.Duration) queue.Message {
	t.Helper()
	ms, err := d.Receive(t.Context(), "q", 1, wait, visibility)
	if err != nil || len(ms) != 1 {
		t.Fatalf("receive: %d messages, %v", len(ms), err)
	}
	return ms[0]
}

func sendOne(t testing.TB, d *DB, body string, delay time.Duration) {
	t.Helper()
	if err := d.Send(t.Context(), "q", queue.Outgoing{Body: []byte(body), Delay: delay}); err != nil {
		t.Fatal(err)
	}
}

func TestStaleReceiptIsTold(t *testing.T) {
	t.Parallel()
	d := setup(t)
	sendOne(t, d, "x", 0)
	first := one(t, d, 0, 10*time.Millisecond)
	second := one(t, d, time.Second, time.Minute)
	if err := d.Extend(t.Context(), "q", first.Receipt, time.Minute); !errors.Is(err, queue.ErrStaleReceipt) {
		t.Errorf("Extend with a stale receipt: %v", err)
	}
	if err := d.Bury(t.Context(), "q", first, "late"); !errors.Is(err, queue.ErrStaleReceipt) {
		t.Errorf("Bury with a stale receipt: %v", err)
	}
	if err := d.Delete(t.Context(), "q", first.Receipt, "junk", "a.b"); err != nil {
		t.Errorf("Delete with stale receipts: %v", err)
	}
	if n, err := d.Depth(t.Context(), "q"); n != 1 || err != nil {
		t.Errorf("Depth %d, %v: a stale receipt touched the message", n, err)
	}
	if err := d.Delete(t.Context(), "q", second.Receipt); err != nil {
		t.Error(err)
	}
	if n, err := d.Depth(t.Context(), "q"); n != 0 || err != nil {
		t.Errorf("Depth %d, %v after delete", n, err)
	}
}

// A receipt holds after the visibility time until somebody else receives.
func TestReceiptHoldsUntilReceivedAgain(t *testing.T) {
	t.Parallel()
	d := setup(t)
	sendOne(t, d, "x", 0)
	m := one(t, d, 0, time.Millisecond)
	time.Sleep(10 * time.Millisecond)
	if err := d.Delete(t.Context(), "q", m.Receipt); err != nil {
		t.Fatal(err)
	}
	if n, _ := d.Depth(t.Context(), "q"); n != 0 {
		t.Errorf("Depth %d after delete", n)
	}
}

// Dead letters appear when the visibility time ends, whether or not somebody
// receives.
func TestDeadWithoutReceiver(t *testing.T) {
	t.Parallel()
	d := setup(t)
	sendOne(t, d, "x", 0)
	for range queue.MaxReceives {
		one(t, d, time.Second, 10*time.Millisecond)
	}
	for end := time.Now().Add(5 * time.Second); ; {
		dead, err := d.TakeDead(t.Context(), 10)
		if err != nil {
			t.Fatal(err)
		}
		if len(dead) == 1 {
			return
		}
		if time.Now().After(end) {
			t.Fatal("no dead letter")
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestCloseEndsWaitingReceives(t *testing.T) {
	t.Parallel()
	d := setup(t)
	got := make(chan error, 1)
	go func() {
		_, err := d.Receive(t.Context(), "q", 1, queue.MaxWait, time.Minute)
		got <- err
	}()
	time.Sleep(20 * time.Millisecond)
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if err := <-got; !errors.Is(err, queue.ErrUnavailable) {
		t.Errorf("waiting receive: %v", err)
	}
	if err := d.Send(t.Context(), "q", queue.Outgoing{Body: []byte("x")}); !errors.Is(err, queue.ErrUnavailable) {
		t.Errorf("send after close: %v", err)
	}
}

func TestRemoveEndsWaitingReceives(t *testing.T) {
	t.Parallel()
	d := setup(t)
	got := make(chan error, 1)
	go func() {
		_, err := d.Receive(t.Context(), "q", 1, queue.MaxWait, time.Minute)
		got <- err
	}()
	time.Sleep(20 * time.Millisecond)
	if err := d.Remove(t.Context(), "q"); err != nil {
		t.Error(err)
	}
	if err := <-got; !errors.Is(err, queue.ErrNoQueue) {
		t.Errorf("waiting receive: %v", err)
	}
}

// Receivers that give up at the moment of a send lose no message and cost it no
// delivery.
func TestLeavingReceiversLoseNothing(t *testing.T) {
	t.Parallel()
	d := setup(t)
	const n = 200
	var got atomic.Int64
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	for i := range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				c, stop := context.WithTimeout(ctx, time.Duration(200+100*i)*time.Microsecond)
				ms, err := d.Receive(c, "q", 2, queue.MaxWait, time.Hour)
				stop()
				if err != nil && len(ms) > 0 {
					t.Errorf("messages and error %v", err)
				}
				got.Add(int64(len(ms)))
			}
		})
	}
	for i := range n {
		sendOne(t, d, fmt.Sprint(i), 0)
	}
	cancel()
	wg.Wait()
	for { // what is left is visible at once, and was never counted as delivered
		ms, err := d.Receive(t.Context(), "q", queue.MaxBatch, 0, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		if len(ms) == 0 {
			break
		}
		for _, m := range ms {
			if m.Receives != 1 {
				t.Errorf("message delivered once says %d", m.Receives)
			}
		}
		got.Add(int64(len(ms)))
	}
	if got.Load() != n {
		t.Errorf("received %d of %d", got.Load(), n)
	}
}

// A call that fails takes none of those with it that share its transaction, and
// none of them is carried out twice.
func TestFailingCallIsAlone(t *testing.T) {
	t.Parallel()
	d := setup(t)
	held, release := make(chan struct{}), make(chan struct{})
	errs := make(chan error, 4)
	go func() {
		errs <- d.do(t.Context(), &call{queue: "q", admin: true, run: func(*sql.Tx, *state) error { close(held); <-release; return nil }})
	}()
	<-held // the next calls gather behind it
	for range 2 {
		go func() { errs <- d.Send(t.Context(), "q", queue.Outgoing{Body: []byte("x")}) }()
	}
	broken := make(chan error, 1)
	go func() {
		broken <- d.do(t.Context(), &call{queue: "q", run: func(tx *sql.Tx, _ *state) error {
			_, err := tx.Exec("insert into nowhere values (1)")
			return err
		}})
	}()
	for len(d.calls) < 3 {
		runtime.Gosched()
	}
	close(release)
	for range 3 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if err := <-broken; !errors.Is(err, queue.ErrUnavailable) {
		t.Errorf("the broken call: %v", err)
	}
	if n, err := d.Depth(t.Context(), "q"); n != 2 || err != nil {
		t.Errorf("%d messages, %v; want 2", n, err)
	}
}

func TestKeptOverReopen(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "queue.db")
	d := open(t, path)
	if err := d.Ensure(t.Context(), "q"); err != nil {
		t.Fatal(err)
	}
	sendOne(t, d, "now", 0)
	sendOne(t, d, "later", time.Second)
	m := one(t, d, 0, time.Minute)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	d = open(t, path)
	if err := d.Extend(t.Context(), "q", m.Receipt, time.Hour); err != nil {
		t.Errorf("a receipt did not outlive the process: %v", err)
	}
	if later := one(t, d, 5*time.Second, time.Minute); string(later.Body) != "later" {
		t.Errorf("received %s", later.Body)
	}
}

func TestOpen(t *testing.T) {
	t.Parallel()
	t.Run("damaged file is replaced", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(t.TempDir(), "queue.db")
		if err := os.WriteFile(path, []byte(strings.Repeat("not a database ", 1000)), 0o600); err != nil {
			t.Fatal(err)
		}
		d := open(t, path)
		if err := d.Ensure(t.Context(), "q"); err != nil {
			t.Fatal(err)
		}
		sendOne(t, d, "x", 0)
		if _, err := os.Stat(path + ".damaged"); err != nil {
			t.Errorf("the damaged file was not kept: %v", err)
		}
	})
	t.Run("overwritten pages are replaced", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(t.TempDir(), "queue.db")
		d := open(t, path)
		if err := d.Ensure(t.Context(), "q"); err != nil {
			t.Fatal(err)
		}
		for i := range 100 {
			sendOne(t, d, strings.Repeat(fmt.Sprint(i), 400), 0)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte(strings.Repeat("\xff", 20000)), 4096); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		d = open(t, path)
		if err := d.Ensure(t.Context(), "q"); err != nil {
			t.Fatal(err)
		}
		sendOne(t, d, "x", 0)
	})
	t.Run("a newer version is refused and left as it is", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(t.TempDir(), "queue.db")
		if err := open(t, path).Close(); err != nil {
			t.Fatal(err)
		}
		db, err := sql.Open("sqlite", path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := db.ExecContext(t.Context(), `pragma user_version = 2`); err != nil {
			t.Fatal(err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		before, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Open(t.Context(), Options{Path: path}); !errors.Is(err, ErrNewer) {
			t.Fatalf("opened: %v", err)
		}
		after, err := os.ReadFile(path)
		if err != nil || !bytes.Equal(before, after) {
			t.Errorf("the file was changed (%v)", err)
		}
		names, err := filepath.Glob(filepath.Join(filepath.Dir(path), "*"))
		if err != nil || len(names) != 1 {
			t.Errorf("beside it: %v (%v)", names, err)
		}
	})
	t.Run("missing file is made", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(t.TempDir(), "new", "with space & % ?.db")
		d := open(t, path)
		if err := d.Ensure(t.Context(), "q"); err != nil {
			t.Fatal(err)
		}
		for _, p := range []string{path, path + "-wal"} {
			info, err := os.Stat(p)
			if err != nil {
				t.Fatal(err)
			}
			if info.Mode().Perm() != 0o600 {
				t.Errorf("%s has mode %s", p, info.Mode())
			}
		}
	})
	t.Run("folder that cannot be written", func(t *testing.T) {
		t.Parallel()
		file := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{filepath.Join(file, "queue.db"), "/proc/queue.db", "", t.TempDir()} {
			d, err := Open(t.Context(), Options{Path: path})
			if err == nil {
				t.Errorf("Open(%q) worked", path)
				_ = d.Close()
			}
		}
	})
	t.Run("file in use", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(t.TempDir(), "queue.db")
		first := open(t, path)
		if err := first.Ensure(t.Context(), "q"); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(t.Context(), Options{Path: path}); err == nil || errors.Is(err, errDamaged) {
			t.Errorf("second Open: %v", err)
		}
		sendOne(t, first, "x", 0)
	})
}

// The queries run per message must not look at rows that they do not need.
func TestPlans(t *testing.T) {
	t.Parallel()
	db, err := openFile(t.Context(), filepath.Join(t.TempDir(), "queue.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for query, want := range map[string]string{
		`select id from goqite where queue = ? and ? >= timeout and received < ? order by priority desc, created limit ?`: "USING INDEX goqite_queue_priority_created_idx (queue=?)",
		`select min(timeout || '') from goqite where queue = ?`:                                                           "goqite_due_idx (queue=?)",
		`select id from goqite where queue = ? and timeout || '' <= ? order by timeout || '' limit ?`:                     "goqite_due_idx (queue=? AND <expr><?)",
		`insert or ignore into dead (id, queue, body, reason, at) select id, ?, body, 'max_receives', ?` + spent:          "goqite_due_idx (queue=? AND <expr><?)",
		`delete from goqite` + holds: "sqlite_autoindex_goqite_1 (id=?)",
	} {
		rows, err := db.QueryContext(t.Context(), `explain query plan `+query, []any{"a", "b", "c", "d", "e"}[:strings.Count(query, "?")]...)
		if err != nil {
			t.Fatal(err)
		}
		var plan []string
		for rows.Next() {
			var a, b, c int
			var detail string
			if err := rows.Scan(&a, &b, &c, &detail); err != nil {
				t.Fatal(err)
			}
			plan = append(plan, detail)
		}
		if err := rows.Close(); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(plan, "; "); !strings.Contains(got, want) || strings.Contains(got, "TEMP B-TREE") {
			t.Errorf("%s: plan %s, want %s", query, got, want)
		}
	}
}

// TestKill: what was acknowledged is there after kill -9.
func TestKill(t *testing.T) {
	if path := os.Getenv("QUEUE_KILL_TEST"); path != "" {
		killChild(t, path)
		return
	}
	t.Parallel()
	path := filepath.Join(t.TempDir(), "queue.db")
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestKill$")
	cmd.Env = append(os.Environ(), "QUEUE_KILL_TEST="+path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	acked := 0
	lines := bufio.NewScanner(out)
	for acked < 300 && lines.Scan() {
		if strings.HasPrefix(lines.Text(), "acked") {
			acked++
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	d := open(t, path)
	if n, err := d.Depth(t.Context(), "q"); err != nil || n < acked || acked < 300 {
		t.Errorf("%d messages after kill -9, %d were acknowledged; %v", n, acked, err)
	}
}

func killChild(t *testing.T, path string) {
	d, err := Open(t.Context(), Options{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Ensure(t.Context(), "q"); err != nil {
		t.Fatal(err)
	}
	for i := 0; ; i++ {
		sendOne(t, d, fmt.Sprint(i), 0)
		fmt.Println("acked", i)
	}
}

// BenchmarkRoundTrip: send, receive and delete, with many callers as in the
// plane and with waiting messages, visible and held back, beside.
func BenchmarkRoundTrip(b *testing.B) {
	for _, waiting := range []int{0, 10_000} {
		b.Run(fmt.Sprintf("waiting=%d", waiting), func(b *testing.B) {
			d := setup(b)
			ctx := b.Context()
			for i := 0; i < waiting; i += 10 {
				ms := make([]queue.Outgoing, 10)
				for j := range ms {
					ms[j].Body = []byte(`{"waiting":true}`)
					if j%2 == 0 {
						ms[j].Delay = 10 * time.Minute
					}
				}
				if err := d.Send(ctx, "q", ms...); err != nil {
					b.Fatal(err)
				}
			}
			b.SetParallelism(32)
			b.ResetTimer()
			before := cpu(b)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if err := d.Send(ctx, "q", queue.Outgoing{Body: []byte(`{"v":1,"op":"op_01jx0000000000000000000000","generation":1}`)}); err != nil {
						b.Error(err)
						return
					}
					ms, err := d.Receive(ctx, "q", 1, time.Second, time.Minute)
					if err != nil || len(ms) != 1 {
						b.Error(len(ms), err)
						return
					}
					if err := d.Delete(ctx, "q", ms[0].Receipt); err != nil {
						b.Error(err)
						return
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msgs/s")
			b.ReportMetric(float64((cpu(b)-before).Microseconds())/float64(b.N), "cpu-us/msg")
		})
	}
}

// cpu is the processor time of this process, which says more than the clock on
// a machine that does other things too.
func cpu(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
