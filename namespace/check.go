package namespace

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/hearthfs/hearth/namespace/record"
	"github.com/hearthfs/hearth/namespace/store"
)

// A check reads all records of the namespace's database. Each record must be readable, and each name's
// node id must lead back to the name. On the way the database compares the checksums of its blocks.

const (
	entryName  = 17   // where the name begins in a key, after kind and directory
	checkPiece = 1000 // records are read at a time
)

// RecordsDB is what a check reads: a database in use, or a store.Look at one.
type RecordsDB interface {
	// Get appends the value of key to buf. It returns false when there is none.
	Get(buf, key []byte) ([]byte, bool, error)
	// Scan reads up to n records in [lower, upper).
	Scan(rows *store.Rows, lower, upper []byte, n int) error
}

// CheckKnown returns store.ErrNewer if the records have a format that this version does not know, and so
// cannot judge.
func CheckKnown(db RecordsDB) error {
	v, held, err := db.Get(nil, []byte(record.FormatKey))
	if err == nil && held && record.Newer(v) {
		return store.ErrNewer
	}
	return err
}

// CheckRecords checks all records. It calls bad with the key of each damaged one, and with the reason. A
// name that changes meanwhile is no damage. step is called with the number of records and bytes of each
// piece. An error is the database's.
func CheckRecords(ctx context.Context, db RecordsDB, bad func(key, why string), step func(records, bytes int64)) error {
	var rows store.Rows
	lower, upper := []byte{0}, []byte{0xff}
	for {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		if err := db.Scan(&rows, lower, upper, checkPiece); err != nil {
			return err
		}
		bytes := 0
		for i := range rows.Len() {
			bytes += len(rows.Key(i)) + len(rows.Value(i))
			if err := one(db, rows.Key(i), rows.Value(i), bad); err != nil {
				return err
			}
		}
		step(int64(rows.Len()), int64(bytes))
		if rows.Len() < checkPiece {
			return nil
		}
		lower = append(append(lower[:0], rows.Key(rows.Len()-1)...), 0)
	}
}

// one checks a record, and checks it again if it is bad: its counterpart may have been written meanwhile.
func one(db RecordsDB, key, value []byte, bad func(key, why string)) error {
	why, err := wrong(db, key, value)
	if err != nil || why == "" {
		return err
	}
	value, held, err := db.Get(nil, key)
	if err != nil || !held {
		return err
	}
	if why, err = wrong(db, key, value); err == nil && why != "" {
		bad(fmt.Sprintf("%q", key), why)
	}
	return err
}

// wrong says what is wrong with a record; "" means nothing.
func wrong(db RecordsDB, key, value []byte) (why string, err error) {
	var unreadable error
	switch key[0] {
	case record.KindEntry:
		e, err := record.ParseEntry(value)
		if err == nil && len(key) <= entryName {
			return "an entry without a name", nil
		}
		if err == nil {
			return leadsBack(db, e, string(key[entryName:]))
		}
		unreadable = err
	case record.KindHashed:
		if len(value) == 0 {
			return "a shortened name of nothing", nil
		}
	case record.KindDirectory:
		d, err := record.ParseDirectory(value)
		if err == nil && d.ID != rootID {
			_, held, err := reverse(db, d.ID)
			if err != nil || held {
				return "", err
			}
			return fmt.Sprintf("node id %d of a directory leads nowhere", d.ID), nil
		}
		unreadable = err
	case record.KindReverse:
		_, unreadable = record.ParseReverse(value)
	case record.KindAttr:
		_, unreadable = record.ParseAttr(value)
	case record.KindPin:
		if !json.Valid(value) {
			return "a pin that cannot be read", nil
		}
	}
	if unreadable != nil {
		return unreadable.Error(), nil
	}
	return "", nil
}

func reverse(db RecordsDB, id uint64) (r record.Reverse, held bool, err error) {
	v, held, err := db.Get(nil, record.IDKey(nil, record.KindReverse, id))
	if err != nil || !held {
		return r, false, err
	}
	r, err = record.ParseReverse(v)
	return r, err == nil, nil
}

// leadsBack says what is wrong with the node id of a name; "" means that it leads back to the name.
func leadsBack(db RecordsDB, e record.Entry, name string) (why string, err error) {
	r, held, err := reverse(db, e.ID)
	switch {
	case err != nil, e.Dir && e.ID == rootID:
	case !held:
		why = fmt.Sprintf("node id %d leads nowhere", e.ID)
	case e.Dir != r.Dir, !e.Dir && (r.Superseded || r.Sort != name):
		why = fmt.Sprintf("node id %d leads to something else", e.ID)
	}
	return why, err
}
