package record

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// segments draws segments of keys, mostly odd ones.
func segments() *rapid.Generator[string] {
	piece := rapid.OneOf(rapid.SampledFrom([]string{"%", "%%", ".", "..", "_", "~", "F", "%F", "%_", "%2E", "%25", "%~", "0", "2", "5",
		"\x00", "\n", "é", "e\u0301", "0123456789abcdef", strings.Repeat("x", 250), strings.Repeat("é", 128)}), rapid.String())
	return rapid.Map(rapid.SliceOfN(piece, 0, 4), func(s []string) string {
		return strings.ReplaceAll(strings.Join(s, ""), "/", "")
	})
}

func checkName(t interface{ Fatalf(string, ...any) }, sort string, beside bool) {
	name := MountName(sort, beside)
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") || len(name) > MaxName {
		t.Fatalf("%q is shown as %q", sort, name)
	}
	if utf8.ValidString(sort) && !utf8.ValidString(name) {
		t.Fatalf("%q is shown as %q", sort, name)
	}
	m, ok := ParseName(name)
	switch {
	case !ok:
		t.Fatalf("%q is shown as %q, which means nothing", sort, name)
	case m.Hashed != IsShortened(name):
		t.Fatalf("%q: %+v", name, m)
	case !m.Hashed && (m.Segment != Segment(sort) || m.File != (beside && !IsDir(sort))):
		t.Fatalf("%q is shown as %q, which means %+v", sort, name, m)
	}
}

func TestNamesLeadBack(t *testing.T) {
	// Whatever a key's segment is, its name in the mount is a file name and decodes to the segment. No two
	// segments have the same name.
	rapid.Check(t, func(t *rapid.T) {
		a, b := segments().Draw(t, "a"), segments().Draw(t, "b")
		names := map[string]string{}
		for _, s := range []string{a, b} {
			checkName(t, s, false)
			checkName(t, s, true)
			checkName(t, s+"/", false)
			for what, name := range map[string]string{s: MountName(s, true), s + "/": MountName(s+"/", false)} {
				if old, ok := names[name]; ok && old != what {
					t.Fatalf("%q and %q are both %q", old, what, name)
				}
				names[name] = what
			}
		}
	})
}

func FuzzNames(f *testing.F) {
	for _, s := range []string{"a", "%2E", "", "a%F", "%~0123456789abcdef", strings.Repeat("%25", 100)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		// A name that can be decoded is the name that its meaning encodes to.
		if m, ok := ParseName(s); ok && !m.Hashed {
			if got := MountName(m.Segment, m.File); got != s {
				t.Fatalf("%q means %+v, whose name is %q", s, m, got)
			}
		}
		if s = strings.ReplaceAll(s, "/", ""); len(s) <= MaxKey {
			checkName(t, s, false)
			checkName(t, s, true)
		}
	})
}

func entries() *rapid.Generator[Entry] {
	return rapid.Custom(func(t *rapid.T) Entry {
		e := Entry{ID: rapid.Uint64().Draw(t, "id"), Dir: rapid.Bool().Draw(t, "dir"), Beside: rapid.Bool().Draw(t, "beside"),
			Doubted: rapid.Bool().Draw(t, "doubted"), Checked: rapid.Int64Range(0, 1<<50).Draw(t, "checked")}
		if e.Dir {
			return e
		}
		e.Size = rapid.Int64Min(0).Draw(t, "size")
		e.ModTime = time.Unix(rapid.Int64Range(-1<<40, 1<<40).Draw(t, "seconds"), rapid.SampledFrom([]int64{0, 1, 999_000_000}).Draw(t, "nanos"))
		e.Exact = e.ModTime.Nanosecond() == 0 && rapid.Bool().Draw(t, "exact")
		e.ETag = rapid.OneOf(rapid.StringMatching(`[0-9a-f]{32}`), rapid.StringMatching(`[0-9a-f]{32}-[0-9]{1,5}`), rapid.String()).Draw(t, "etag")
		e.Class = rapid.SampledFrom([]string{"", "", "GLACIER", "ONE OF THEIR OWN"}).Draw(t, "class")
		if e.HasVersion = rapid.Bool().Draw(t, "has"); e.HasVersion {
			e.Version[3] = 7
		}
		return e
	})
}

func TestRecordsRoundTrip(t *testing.T) {
	// What is written is read, field by field.
	rapid.Check(t, func(t *rapid.T) {
		e := entries().Draw(t, "entry")
		got, err := ParseEntry(e.Append(nil))
		if err != nil || got != e {
			t.Fatalf("%+v, %v\nwant %+v", got, err, e)
		}
		for _, r := range []Reverse{
			{Dir: true, Link: "=/", Path: "a/b/"},
			{Parent: e.ID, Sort: e.ETag},
			{Parent: e.ID, Sort: e.ETag, Superseded: true, Entry: e},
		} {
			if got, err := ParseReverse(r.Append(nil)); err != nil || got != r {
				t.Fatalf("%+v, %v\nwant %+v", got, err, r)
			}
		}
		d := Directory{ID: e.ID, Listed: e.Size, Took: time.Duration(e.Checked%1e9) * time.Millisecond, Seen: -1, Refused: 3}
		if got, err := ParseDirectory(d.Append(nil)); err != nil || got != d {
			t.Fatalf("%+v, %v\nwant %+v", got, err, d)
		}
	})
}

func FuzzRecords(f *testing.F) {
	e := Entry{ID: 5, Size: 7, ETag: "0123456789abcdef0123456789abcdef-3", ModTime: time.Unix(1, 0)}
	f.Add(e.Append(nil))
	f.Add((&Reverse{Dir: true, Link: "=", Path: "a/"}).Append(nil))
	superseded := (&Reverse{Parent: 7, Sort: "name", Superseded: true, Entry: e}).Append(nil)
	f.Add(superseded)
	f.Add(superseded[:len(superseded)-1]) // truncated
	f.Add(append(superseded, 0))          // longer than this version knows
	f.Add((&Directory{ID: 3, Listed: 4, Took: time.Second, Seen: 5, Refused: 6}).Append(nil))
	f.Add([]byte("a foreign record"))
	f.Fuzz(func(t *testing.T, b []byte) {
		// Any bytes are read or refused. What is read, written again, reads the same.
		if e, err := ParseEntry(b); err == nil {
			if got, err := ParseEntry(e.Append(nil)); err != nil || got != e {
				t.Fatalf("%+v, %v\nwant %+v", got, err, e)
			}
		}
		if r, err := ParseReverse(b); err == nil {
			if got, err := ParseReverse(r.Append(nil)); err != nil || got != r {
				t.Fatalf("%+v, %v\nwant %+v", got, err, r)
			}
		}
		if d, err := ParseDirectory(b); err == nil {
			if got, err := ParseDirectory(d.Append(nil)); err != nil || got != d {
				t.Fatalf("%+v, %v\nwant %+v", got, err, d)
			}
		}
	})
}
