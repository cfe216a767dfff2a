package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"maragu.dev/goqite"

	"github.com/opsplane/opsplane/shared/queue"
)

// A queue is two goqite queues. In "ready/<name>" every message can be received
// now, so that goqite's query finds its first row at once however many wait;
// "held/<name>" has the delayed ones and those handed out, in order of the time
// when they are due. promote moves what is due from held to ready, and to the
// table of dead letters what was handed out MaxReceives times.
//
// The table and its first index are goqite's (schema_sqlite.sql, v0.4.0)
// without the trigger that keeps "updated", which nobody reads. The index on
// held is over an expression, so that it is of no use to goqite's own query,
// which would sort all rows with it.
const schema = `
create table goqite (
  id text primary key default ('m_' || lower(hex(randomblob(16)))),
  created text not null default (strftime('%Y-%m-%dT%H:%M:%fZ')),
  updated text not null default (strftime('%Y-%m-%dT%H:%M:%fZ')),
  queue text not null,
  body blob not null,
  timeout text not null default (strftime('%Y-%m-%dT%H:%M:%fZ')),
  received integer not null default 0,
  priority integer not null default 0
) strict;
create index goqite_queue_priority_created_idx on goqite (queue, priority desc, created);
create index goqite_due_idx on goqite (queue, timeout || '');
create table queues (name text primary key) strict;
create table dead (
  id text primary key,
  queue text not null,
  body blob not null,
  reason text not null,
  at text not null
) strict;
create index dead_at_idx on dead (at, id);
`

// stamp is goqite's own time format.
const stamp = "2006-01-02T15:04:05.000Z07:00"

// promoteMax bounds the messages that one transaction makes visible.
const promoteMax = 1000

func formatTime(t time.Time) string { return t.UTC().Format(stamp) }

// state is what the writer remembers of a queue. It only ever errs towards
// looking once too often.
type state struct {
	name, ready, held string

	visible bool      // there may be messages to receive
	due     time.Time // no held message is due before; zero when none is held
	waiting []*call   // receives, oldest first
}

func newState(name string) *state {
	// What is in the file is not known yet: look at once.
	return &state{name: name, ready: "ready/" + name, held: "held/" + name, visible: true, due: time.Unix(0, 0)}
}

func (q *state) dueBy(t time.Time) {
	if q.due.IsZero() || t.Before(q.due) {
		q.due = t
	}
}

func (q *state) queue(name string, visibility time.Duration) *goqite.Queue {
	return goqite.New(goqite.NewOpts{Name: name, DB: noDB, MaxReceive: queue.MaxReceives, Timeout: visibility})
}

// noDB satisfies goqite.New: only its Tx methods are used.
var noDB = new(sql.DB)

func loadQueues(ctx context.Context, db *sql.DB) ([]string, error) {
	rows, err := db.QueryContext(ctx, `select name from queues`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var names []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, rows.Err()
}

func send(tx *sql.Tx, q *state, ms []queue.Outgoing) error {
	ready, held := q.queue(q.ready, 0), q.queue(q.held, 0)
	for _, m := range ms {
		delay := (m.Delay + time.Second - 1).Truncate(time.Second)
		to := ready
		if delay > 0 {
			to = held
			q.dueBy(time.Now().Add(delay))
		} else {
			q.visible = true
		}
		if err := to.SendTx(bg, tx, goqite.Message{Body: m.Body, Delay: delay}); err != nil {
			return fmt.Errorf("send to %s: %w", q.name, err)
		}
	}
	return nil
}

// take receives up to max messages and holds them back for the visibility time.
func take(tx *sql.Tx, q *state, max int, visibility time.Duration) ([]queue.Message, error) {
	gq := q.queue(q.ready, visibility)
	var ms []queue.Message
	for len(ms) < max {
		m, err := gq.ReceiveTx(bg, tx)
		if err != nil {
			return nil, fmt.Errorf("receive from %s: %w", q.name, err)
		}
		if m == nil {
			q.visible = false
			break
		}
		got := queue.Message{ID: string(m.ID), Body: m.Body}
		err = tx.QueryRowContext(bg, `update goqite set queue = ? where id = ? returning received`, q.held, got.ID).Scan(&got.Receives)
		if err != nil {
			return nil, fmt.Errorf("hold message of %s: %w", q.name, err)
		}
		got.Receipt = receiptOf(got.ID, got.Receives)
		ms = append(ms, got)
	}
	if len(ms) > 0 {
		q.dueBy(time.Now().Add(visibility))
	}
	return ms, nil
}

// untake puts messages back that were taken for a receiver who went away.
func untake(tx *sql.Tx, q *state, ms []queue.Message) error {
	for _, m := range ms {
		_, err := tx.ExecContext(bg, `update goqite set queue = ?, received = received - 1, timeout = ? where id = ?`,
			q.ready, formatTime(time.Now()), m.ID)
		if err != nil {
			return fmt.Errorf("put back message of %s: %w", q.name, err)
		}
	}
	q.visible = true
	return nil
}

// promote moves what is due: to the dead letters after the last receive, else
// back among the visible ones.
func promote(tx *sql.Tx, q *state) error {
	now := time.Now()
	due := formatTime(now)
	res, err := tx.ExecContext(bg, `insert or ignore into dead (id, queue, body, reason, at) select id, ?, body, 'max_receives', ?`+spent,
		q.name, due, q.held, due, queue.MaxReceives)
	if err != nil {
		return fmt.Errorf("put dead letters of %s aside: %w", q.name, err)
	}
	if n, _ := res.RowsAffected(); n > 0 {
		if _, err := tx.ExecContext(bg, `delete`+spent, q.held, due, queue.MaxReceives); err != nil {
			return fmt.Errorf("put dead letters of %s aside: %w", q.name, err)
		}
	}
	res, err = tx.ExecContext(bg, `update goqite set queue = ? where id in (
		select id from goqite where queue = ? and timeout || '' <= ? order by timeout || '' limit ?)`, q.ready, q.held, due, promoteMax)
	if err != nil {
		return fmt.Errorf("show due messages of %s: %w", q.name, err)
	}
	if n, _ := res.RowsAffected(); n > 0 {
		q.visible = true
	}
	var next sql.NullString
	err = tx.QueryRowContext(bg, `select min(timeout || '') from goqite where queue = ?`, q.held).Scan(&next)
	if err != nil {
		return fmt.Errorf("find next due message of %s: %w", q.name, err)
	}
	q.due = time.Time{}
	if next.Valid {
		if q.due, err = time.Parse(stamp, next.String); err != nil {
			return fmt.Errorf("find next due message of %s: %w", q.name, err)
		}
	}
	return nil
}

// spent is the condition for a held message that was handed out for the last
// time.
const spent = ` from goqite where queue = ? and timeout || '' <= ? and received >= ?`

// The receipt is the message's id and which delivery it was.
func receiptOf(id string, receives int) string { return id + "." + strconv.Itoa(receives) }

func parseReceipt(receipt string) (id string, receives int, ok bool) {
	id, count, ok := strings.Cut(receipt, ".")
	if !ok {
		return "", 0, false
	}
	n, err := strconv.Atoi(count)
	return id, n, err == nil && n > 0
}

// holds is the condition for a delivery that still holds: nobody received the
// message since.
const holds = ` where id = ? and received = ? and queue in (?, ?)`

func remove(tx *sql.Tx, q *state, receipts []string) error {
	for _, r := range receipts {
		id, n, ok := parseReceipt(r)
		if !ok {
			continue
		}
		if _, err := tx.ExecContext(bg, `delete from goqite`+holds, id, n, q.held, q.ready); err != nil {
			return fmt.Errorf("delete from %s: %w", q.name, err)
		}
	}
	return nil
}

func extend(tx *sql.Tx, q *state, receipt string, d time.Duration) (found bool, err error) {
	id, n, ok := parseReceipt(receipt)
	if !ok {
		return false, nil
	}
	until := time.Now().Add(d)
	res, err := tx.ExecContext(bg, `update goqite set timeout = ?, queue = ?`+holds, formatTime(until), q.held, id, n, q.held, q.ready)
	if err != nil {
		return false, fmt.Errorf("extend in %s: %w", q.name, err)
	}
	q.dueBy(until)
	rows, err := res.RowsAffected()
	return rows > 0, err
}

func bury(tx *sql.Tx, q *state, receipt, reason string) (found bool, err error) {
	id, n, ok := parseReceipt(receipt)
	if !ok {
		return false, nil
	}
	res, err := tx.ExecContext(bg, `insert or ignore into dead (id, queue, body, reason, at) select id, ?, body, ?, ? from goqite`+holds,
		q.name, reason, formatTime(time.Now()), id, n, q.held, q.ready)
	if err != nil {
		return false, fmt.Errorf("bury in %s: %w", q.name, err)
	}
	if rows, err := res.RowsAffected(); err != nil || rows == 0 {
		return false, err
	}
	if _, err := tx.ExecContext(bg, `delete from goqite where id = ?`, id); err != nil {
		return false, fmt.Errorf("bury in %s: %w", q.name, err)
	}
	return true, nil
}

func depth(tx *sql.Tx, q *state) (n int, err error) {
	err = tx.QueryRowContext(bg, `select count(*) from goqite where queue in (?, ?)`, q.ready, q.held).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("count messages of %s: %w", q.name, err)
	}
	return n, nil
}

func ensure(tx *sql.Tx, name string) error {
	if _, err := tx.ExecContext(bg, `insert or ignore into queues (name) values (?)`, name); err != nil {
		return fmt.Errorf("make queue %s: %w", name, err)
	}
	return nil
}

func drop(tx *sql.Tx, name string) error {
	q := newState(name)
	if _, err := tx.ExecContext(bg, `delete from goqite where queue in (?, ?)`, q.ready, q.held); err != nil {
		return fmt.Errorf("delete messages of %s: %w", name, err)
	}
	if _, err := tx.ExecContext(bg, `delete from queues where name = ?`, name); err != nil {
		return fmt.Errorf("delete queue %s: %w", name, err)
	}
	return nil
}

func takeDead(tx *sql.Tx, max int) ([]queue.DeadLetter, error) {
	rows, err := tx.QueryContext(bg, `select id, queue, body, reason, at from dead order by at, id limit ?`, max)
	if err != nil {
		return nil, fmt.Errorf("read dead letters: %w", err)
	}
	defer rows.Close()
	var dead []queue.DeadLetter
	for rows.Next() {
		var d queue.DeadLetter
		var at string
		if err := rows.Scan(&d.ID, &d.Queue, &d.Body, &d.Reason, &at); err != nil {
			return nil, fmt.Errorf("read dead letters: %w", err)
		}
		if d.At, err = time.Parse(stamp, at); err != nil {
			return nil, fmt.Errorf("read dead letters: %w", err)
		}
		dead = append(dead, d)
	}
	return dead, rows.Err()
}

func dropDead(tx *sql.Tx, ids []string) error {
	list, err := json.Marshal(ids)
	if err != nil {
		return fmt.Errorf("drop dead letters: %w", err)
	}
	if _, err := tx.ExecContext(bg, `delete from dead where id in (select value from json_each(?))`, string(list)); err != nil {
		return fmt.Errorf("drop dead letters: %w", err)
	}
	return nil
}

// bg is the context of the writer's statements: a call that was begun is
// finished, and a context that can end costs the driver a goroutine each time.
var bg = context.Background()
