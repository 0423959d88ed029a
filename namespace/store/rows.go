package store

import "github.com/cockroachdb/pebble/v2"

// Rows are the records that Scan found, in one buffer that the next Scan reuses.
type Rows struct {
	data []byte
	ends []int // of keys and values, alternating
}

// Len is the number of records.
func (r *Rows) Len() int { return len(r.ends) / 2 }

// Key of record i, valid until the Rows are scanned into again.
func (r *Rows) Key(i int) []byte { return r.at(2 * i) }

// Value of record i, valid as the key.
func (r *Rows) Value(i int) []byte { return r.at(2*i + 1) }

func (r *Rows) at(i int) []byte {
	start := 0
	if i > 0 {
		start = r.ends[i-1]
	}
	return r.data[start:r.ends[i]:r.ends[i]]
}

func (r *Rows) add(b []byte) {
	r.data = append(r.data, b...)
	r.ends = append(r.ends, len(r.data))
}

// Scan reads up to n records in [lower, upper) into rows. It leaves no iterator open: an open one keeps
// files alive.
func (s *Store) Scan(rows *Rows, lower, upper []byte, n int) error {
	return s.try(func(db *pebble.DB) error { return rows.scan(db, lower, upper, n) })
}

func (r *Rows) scan(db *pebble.DB, lower, upper []byte, n int) error {
	r.data, r.ends = r.data[:0], r.ends[:0]
	it, err := db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return err
	}
	for ok := it.First(); ok && n > r.Len(); ok = it.Next() {
		r.add(it.Key())
		r.add(it.Value())
	}
	return it.Close() // gives the iteration's error, too
}
