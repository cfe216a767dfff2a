package sqlite

import (
	"errors"
	"fmt"

	sqlite3 "modernc.org/sqlite/lib"
)

const (
	// applicationID marks the file as a ledger ("OPSL"),
	// https://www.sqlite.org/pragma.html#pragma_application_id.
	applicationID = 0x4f50534c
	// schemaVersion is what this build writes to PRAGMA user_version.
	schemaVersion = 1
)

// migrations[v] takes a file from schema version v to v+1.
//
// Items have a rowid, so that an update of a known row costs one seek and an
// index entry points at its row cheaply. The indexes are partial: an item that
// is not in one costs it nothing. Data comes last: what precedes it is read
// without walking its overflow pages.
var migrations = []string{`
create table items (
	id integer primary key,
	pk text not null, sk text not null,
	version integer not null,
	due integer, -- Unix milliseconds
	expires integer, -- Unix seconds
	list_pk text, list_sk text,
	scope_pk text, scope_sk text,
	lookup_pk text, lookup_sk text,
	live_pk text, live_sk text,
	data blob not null
) strict;
create unique index items_key on items (pk, sk);
create index items_due on items (due, pk, sk) where due is not null;
create index items_expires on items (expires) where expires is not null;
create index items_list on items (list_pk, list_sk, pk, sk) where list_pk is not null;
create index items_scope on items (scope_pk, scope_sk, pk, sk) where scope_pk is not null;
create index items_lookup on items (lookup_pk, lookup_sk, pk, sk) where lookup_pk is not null;
create index items_live on items (live_pk, live_sk, pk, sk) where live_pk is not null;

create table feed (
	seq integer primary key,
	pk text not null, sk text not null,
	version integer not null,
	deleted integer not null,
	at integer not null -- Unix seconds
) strict;
-- feed_trimmed: the highest seq that was dropped from the feed, ever.
create table meta (name text primary key, value integer not null) strict;
insert into meta values ('feed_trimmed', 0);
`}

// checkFile looks at the file through c without changing it: the schema version
// it has, 0 for an empty file.
func checkFile(c *conn) (int64, error) {
	version, err := c.intOf("pragma user_version")
	if err != nil {
		var se *sqlError
		if errors.As(err, &se) && se.primary() == sqlite3.SQLITE_NOTADB {
			return 0, fmt.Errorf("%w: %w", ErrNotLedger, err)
		}
		return 0, err
	}
	id, err := c.intOf("pragma application_id")
	if err != nil {
		return 0, err
	}
	tables, err := c.intOf("select count(*) from sqlite_schema")
	if err != nil {
		return 0, err
	}
	switch {
	case id != applicationID && (id != 0 || version != 0 || tables != 0):
		return 0, fmt.Errorf("%w: another program's SQLite file (application id %d)", ErrNotLedger, id)
	case version > schemaVersion:
		return 0, fmt.Errorf("%w: it has schema version %d, this build knows %d", ErrNewerVersion, version, schemaVersion)
	}
	return version, nil
}

// migrate brings the file to this build's schema in one transaction.
func migrate(c *conn, from int64) error {
	if from == schemaVersion {
		return nil
	}
	if err := c.exec("begin immediate"); err != nil {
		return err
	}
	defer c.rollback()
	for _, sql := range migrations[from:] {
		if err := c.exec(sql); err != nil {
			return err
		}
	}
	if err := c.exec(fmt.Sprintf("pragma application_id = %d; pragma user_version = %d; commit", applicationID, schemaVersion)); err != nil {
		return err
	}
	return nil
}
