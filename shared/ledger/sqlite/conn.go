package sqlite

import (
	"encoding/binary"
	"fmt"
	"strconv"

	"modernc.org/libc"
	sqlite3 "modernc.org/sqlite/lib"
)

// conn is one SQLite connection, used by one goroutine at a time.
//
// It calls the library below the database/sql driver: there each execution
// allocates C memory for every text, looks parameters up by name and describes
// every column, which costs several times the statement itself at the sizes
// that the ledger writes.
type conn struct {
	tls   *libc.TLS
	db    uintptr
	stmts map[string]*stmt
	arena uintptr // memory for bound texts and blobs, reused by every execution
	used  int
	extra []uintptr // blocks for what did not fit into the arena
}

// arenaBytes holds the parameters of all but the largest items.
const arenaBytes = 64 << 10

// sqlError is a failure that the library reports.
type sqlError struct {
	Code int32 // extended result code, https://www.sqlite.org/rescode.html
	Text string
}

func (e *sqlError) Error() string { return fmt.Sprintf("sqlite: %s (%d)", e.Text, e.Code) }

// primary is the result code without its extension.
func (e *sqlError) primary() int32 { return e.Code & 0xff }

// openConn opens the file; flags are SQLITE_OPEN_*.
func openConn(name string, flags int32) (*conn, error) {
	c := &conn{tls: libc.NewTLS(), stmts: map[string]*stmt{}}
	c.arena = libc.Xmalloc(c.tls, arenaBytes)
	out := libc.Xcalloc(c.tls, 1, 8)
	path, err := libc.CString(name)
	if err != nil || c.arena == 0 || out == 0 {
		c.tls.Close()
		return nil, fmt.Errorf("open %s: out of memory", name)
	}
	rc := sqlite3.Xsqlite3_open_v2(c.tls, path, out, flags|sqlite3.SQLITE_OPEN_NOMUTEX, 0)
	c.db = pointerAt(out)
	libc.Xfree(c.tls, out)
	libc.Xfree(c.tls, path)
	if rc != sqlite3.SQLITE_OK {
		err := c.fail(rc)
		c.close()
		return nil, err
	}
	sqlite3.Xsqlite3_extended_result_codes(c.tls, c.db, 1)
	sqlite3.Xsqlite3_busy_timeout(c.tls, c.db, busyTimeoutMillis)
	return c, nil
}

// pointerAt reads the pointer that is stored at p.
func pointerAt(p uintptr) uintptr {
	if strconv.IntSize == 32 {
		return uintptr(binary.NativeEndian.Uint32(libc.GoBytes(p, 4)))
	}
	return uintptr(binary.NativeEndian.Uint64(libc.GoBytes(p, 8)))
}

func (c *conn) close() {
	for _, s := range c.stmts {
		sqlite3.Xsqlite3_finalize(c.tls, s.p)
	}
	if c.db != 0 {
		sqlite3.Xsqlite3_close_v2(c.tls, c.db)
	}
	c.free()
	libc.Xfree(c.tls, c.arena)
	c.tls.Close()
}

// fail makes the error of a result code.
func (c *conn) fail(rc int32) error {
	text := libc.GoString(sqlite3.Xsqlite3_errstr(c.tls, rc))
	if c.db != 0 && sqlite3.Xsqlite3_extended_errcode(c.tls, c.db) == rc {
		text = libc.GoString(sqlite3.Xsqlite3_errmsg(c.tls, c.db))
	}
	return &sqlError{Code: rc, Text: text}
}

// exec runs SQL text without parameters or results: one or many statements.
func (c *conn) exec(sql string) error {
	p, err := libc.CString(sql)
	if err != nil {
		return err
	}
	defer libc.Xfree(c.tls, p)
	if rc := sqlite3.Xsqlite3_exec(c.tls, c.db, p, 0, 0, 0); rc != sqlite3.SQLITE_OK {
		return c.fail(rc)
	}
	return nil
}

// intOf runs a statement that returns one number, 0 without a row.
func (c *conn) intOf(sql string) (int64, error) {
	s, err := c.prepare(sql)
	if err != nil {
		return 0, err
	}
	defer s.reset()
	if ok, err := s.step(); !ok {
		return 0, err
	}
	return s.intAt(0), nil
}

// inTransaction tells whether a transaction is open.
func (c *conn) inTransaction() bool { return sqlite3.Xsqlite3_get_autocommit(c.tls, c.db) == 0 }

// rollback ends the transaction, if the failure that led here left one.
func (c *conn) rollback() {
	if c.inTransaction() {
		_ = c.exec("rollback") // fails only when there is none
	}
}

// free gives back the blocks of the last execution.
func (c *conn) free() {
	for _, p := range c.extra {
		sqlite3.Xsqlite3_free(c.tls, p)
	}
	c.extra, c.used = c.extra[:0], 0
}

// room returns n bytes of memory that last until the statement is reset.
func (c *conn) room(n int) uintptr {
	if c.used+n <= arenaBytes {
		p := c.arena + uintptr(c.used)
		c.used += n
		return p
	}
	p := sqlite3.Xsqlite3_malloc64(c.tls, sqlite3.Tsqlite3_uint64(n))
	if p != 0 {
		c.extra = append(c.extra, p)
	}
	return p
}

// stmt is a prepared statement. An execution is: bind, step, reset; only one of
// a connection's statements may be between bind and step.
type stmt struct {
	c   *conn
	p   uintptr
	err error // first failure of a bind, told by step
}

// prepare returns the statement for the SQL text, prepared once a connection.
func (c *conn) prepare(sql string) (*stmt, error) {
	if s := c.stmts[sql]; s != nil {
		return s, nil
	}
	text, err := libc.CString(sql)
	if err != nil {
		return nil, err
	}
	defer libc.Xfree(c.tls, text)
	out := libc.Xcalloc(c.tls, 1, 8)
	if out == 0 {
		return nil, fmt.Errorf("prepare: out of memory")
	}
	defer libc.Xfree(c.tls, out)
	if rc := sqlite3.Xsqlite3_prepare_v3(c.tls, c.db, text, -1, sqlite3.SQLITE_PREPARE_PERSISTENT, out, 0); rc != sqlite3.SQLITE_OK {
		return nil, c.fail(rc)
	}
	s := &stmt{c: c, p: pointerAt(out)}
	c.stmts[sql] = s
	return s, nil
}

func (s *stmt) bound(rc int32) {
	if rc != sqlite3.SQLITE_OK && s.err == nil {
		s.err = s.c.fail(rc)
	}
}

func (s *stmt) bindInt(i int32, v int64) {
	s.bound(sqlite3.Xsqlite3_bind_int64(s.c.tls, s.p, i, v))
}

func (s *stmt) bindNull(i int32) {
	s.bound(sqlite3.Xsqlite3_bind_null(s.c.tls, s.p, i))
}

// bindText and bindBlob bind without a copy by the library: the memory is the
// connection's own and lasts until reset.
func (s *stmt) bindText(i int32, v string) {
	p := s.c.room(len(v))
	if p == 0 {
		s.bound(sqlite3.SQLITE_NOMEM)
		return
	}
	copy(libc.GoBytes(p, len(v)), v)
	s.bound(sqlite3.Xsqlite3_bind_text(s.c.tls, s.p, i, p, int32(len(v)), 0))
}

func (s *stmt) bindBlob(i int32, v []byte) {
	p := s.c.room(len(v))
	if p == 0 {
		s.bound(sqlite3.SQLITE_NOMEM)
		return
	}
	copy(libc.GoBytes(p, len(v)), v)
	s.bound(sqlite3.Xsqlite3_bind_blob(s.c.tls, s.p, i, p, int32(len(v)), 0))
}

// step runs to the next row and tells whether there is one.
func (s *stmt) step() (bool, error) {
	if s.err != nil {
		return false, s.err
	}
	switch rc := sqlite3.Xsqlite3_step(s.c.tls, s.p); rc {
	case sqlite3.SQLITE_ROW:
		return true, nil
	case sqlite3.SQLITE_DONE:
		return false, nil
	default:
		return false, s.c.fail(rc)
	}
}

// reset ends an execution. Its result code repeats the one of step.
func (s *stmt) reset() {
	sqlite3.Xsqlite3_reset(s.c.tls, s.p)
	s.c.free()
	s.err = nil
}

// run executes a bound statement that returns no rows.
func (s *stmt) run() error {
	_, err := s.step()
	s.reset()
	return err
}

func (s *stmt) isNull(col int32) bool {
	return sqlite3.Xsqlite3_column_type(s.c.tls, s.p, col) == sqlite3.SQLITE_NULL
}

func (s *stmt) intAt(col int32) int64 {
	return sqlite3.Xsqlite3_column_int64(s.c.tls, s.p, col)
}

// raw returns a text or blob in the library's memory, good until the next step.
func (s *stmt) raw(col int32) []byte {
	p := sqlite3.Xsqlite3_column_blob(s.c.tls, s.p, col)
	if p == 0 {
		return nil
	}
	return libc.GoBytes(p, int(sqlite3.Xsqlite3_column_bytes(s.c.tls, s.p, col)))
}

func (s *stmt) textAt(col int32) string { return string(s.raw(col)) }

func (s *stmt) blobAt(col int32) []byte { return append([]byte(nil), s.raw(col)...) }

// changes is how many rows the last statement deleted, put or changed.
func (c *conn) changes() int64 { return int64(sqlite3.Xsqlite3_changes(c.tls, c.db)) }

// lastID is the row of the last insert.
func (c *conn) lastID() int64 { return int64(sqlite3.Xsqlite3_last_insert_rowid(c.tls, c.db)) }

// interrupt ends the statement that runs, from any goroutine while c is open.
func (c *conn) interrupt() {
	tls := libc.NewTLS()
	defer tls.Close()
	sqlite3.Xsqlite3_interrupt(tls, c.db)
}
