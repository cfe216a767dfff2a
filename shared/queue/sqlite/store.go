package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/opsplane/opsplane/shared/queue"
)

// A queue is two of goqite's. In "ready/<name>" every message can be received
// now, so that the query of a receive finds its first rows at once however many
// wait; "held/<name>" has the delayed ones and those handed out, in order of the
// time when they are due. promote moves what is due from held to ready, and to
// the table of dead letters what was handed out MaxReceives times.
//
// The table and its first index are goqite's (schema_sqlite.sql, v0.4.0)
// without the trigger that keeps "updated", which nobody reads. The index on
// held is over an expression, so that it is of no use to the query of a receive,
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

// prepared are the statements of every doorbell's way, parsed once: parsing one
// costs more than running it. goqite's own calls would parse theirs each time;
// these are its own (goqite.go, v0.4.0), take for many messages at once and with
// the move to held, remove with the receipt's condition.
type prepared struct{ send, take, remove *sql.Stmt }

func prepareAll(ctx context.Context, db *sql.DB) (p prepared, err error) {
	for stmt, text := range map[**sql.Stmt]string{
		&p.send: `insert into goqite (queue, body, timeout, priority) values (?, ?, ?, 0)`,
		&p.take: `update goqite set timeout = ?, received = received + 1, queue = ? where id in (
			select id from goqite where queue = ? and ? >= timeout and received < ? order by priority desc, created limit ?)
			returning id, body, received, created`,
		&p.remove: `delete from goqite` + holds,
	} {
		if *stmt, err = db.PrepareContext(ctx, text); err != nil {
			return p, fmt.Errorf("prepare: %w", err)
		}
	}
	return p, nil
}

func (p *prepared) sendAll(tx *sql.Tx, q *state, ms []queue.Outgoing) error {
	stmt := tx.Stmt(p.send)
	now := time.Now()
	for _, m := range ms {
		delay := (m.Delay + time.Second - 1).Truncate(time.Second)
		to := q.ready
		if delay > 0 {
			to = q.held
			q.dueBy(now.Add(delay))
		} else {
			q.visible = true
		}
		if _, err := stmt.ExecContext(bg, to, m.Body, formatTime(now.Add(delay))); err != nil {
			return fmt.Errorf("send to %s: %w", q.name, err)
		}
	}
	return nil
}

// takeMany receives up to max messages, oldest first, and holds them back for
// the visibility time.
func (p *prepared) takeMany(tx *sql.Tx, q *state, max int, visibility time.Duration) ([]queue.Message, error) {
	now := time.Now()
	rows, err := tx.Stmt(p.take).QueryContext(bg, formatTime(now.Add(visibility)), q.held, q.ready, formatTime(now), queue.MaxReceives, max)
	if err != nil {
		return nil, fmt.Errorf("receive from %s: %w", q.name, err)
	}
	defer rows.Close()
	type taken struct {
		queue.Message
		created string
	}
	var got []taken
	for rows.Next() {
		var m taken
		if err := rows.Scan(&m.ID, &m.Body, &m.Receives, &m.created); err != nil {
			return nil, fmt.Errorf("receive from %s: %w", q.name, err)
		}
		m.Receipt = receiptOf(m.ID, m.Receives)
		got = append(got, m)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("receive from %s: %w", q.name, err)
	}
	if len(got) < max {
		q.visible = false
	}
	if len(got) > 0 {
		q.dueBy(now.Add(visibility))
	}
	// The order of returning is no order (https://www.sqlite.org/lang_returning.html).
	slices.SortStableFunc(got, func(a, b taken) int { return strings.Compare(a.created, b.created) })
	ms := make([]queue.Message, len(got))
	for i, m := range got {
		ms[i] = m.Message
	}
	return ms, nil
}

func (p *prepared) removeAll(tx *sql.Tx, q *state, receipts []string) error {
	stmt := tx.Stmt(p.remove)
	for _, r := range receipts {
		id, n, ok := parseReceipt(r)
		if !ok {
			continue
		}
		if _, err := stmt.ExecContext(bg, id, n, q.held, q.ready); err != nil {
			return fmt.Errorf("delete from %s: %w", q.name, err)
		}
	}
	return nil
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
