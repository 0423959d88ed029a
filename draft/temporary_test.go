package draft

import (
	"os"
	"slices"
	"strings"
	"testing"
)

func TestTemporaryNames(t *testing.T) {
	// What the tools call a file that is not whole yet is staged, and the final name is foretold where the names tell it surely. All
	// else is not staged.
	usual := temporary(t, DefaultTemporary()...)
	const plain = "-" // not staged
	for key, want := range map[string]string{
		"": plain, "a": plain, "a/b/c.bin": plain, "dir/": plain, "tmp": plain, "a.tmpx": plain, "tmp/a": plain, "a.temp": plain, "x.tmp2/y": plain,

		"x.tmp": "x", "d/e/x.tmp": "d/e/x", ".metadata.tmp": ".metadata", "b.tmp/a.tmp": "b/a", "b.tmp/a": "b/a", "b.tmp/": "b/", "a/b.tmp/c/": "a/b/c/",
		".tmp": "", "d/.tmp": "", "x/.tmp/a.tmp": "", "..tmp": "", "...tmp": "", "x.tmp.tmp": "", ".tmp/x.tmp": "",

		"k.json.tmp.pid_1528_587007": "k.json", "x.tmp.": "x", ".tmp.1": "", "x.tmp.a.tmp.b": "", "x.tmp.a.tmp": "",
		"conf.tmp-17005ab": "conf", "x.tmp-": "x", ".tmp-9": "", "x.tmp.1/y.tmp-2": "x/y",
		".tmpAbCdEf": "", "step/.tmpAbCdEf": "", ".tmpdir/model.safetensors": "",

		"blobs/0a1b.incomplete": "blobs/0a1b", "data.incomplete/0000.arrow": "data/0000.arrow", ".incomplete": "", "x.incomplete2": plain,

		"tmp-checkpoint-500": "checkpoint-500", "out/tmp-checkpoint-500/optimizer.pt": "out/checkpoint-500/optimizer.pt",
		"tmp-checkpoint-": "", "tmp-checkpoint-pe8ry7n_/config.json": "", "tmp-checkpoint-1a": "", "tmp-checkpoint-5.tmp": "", "tmp-checkpoint": plain, "xtmp-checkpoint-1": plain,

		"7.orbax-checkpoint-tmp-1010101":                                    "7",
		"7.orbax-checkpoint-tmp":                                            "7",
		"run/7.orbax-checkpoint-tmp-1/params.orbax-checkpoint-tmp-2/d/abcd": "run/7/params/d/abcd",
		".orbax-checkpoint-tmp-1":                                           "",

		".notes.txt.swp": "", "x.swp": "", ".swp": "", "d.swp/x.tmp": "", "x.swpx": plain,

		".model.bin.AbC1d9": "model.bin", "d/.x.aaaaaa": "d/x", ".a.b.c.d.zzzzzz": "a.b.c.d", ".x.tmp.AbCdEf": "", // rsync's of .x.tmp, or another's of .x
		".aaaaaa": plain, "..aaaaaa": "", "...aaaaaa": "", "....aaaaaa": "", ".x.aaaaa": plain, ".x.aaaaaaa": plain, "x.aaaaaa": plain, ".x.aa.aaa": "", ".x.ääßéöü": "", ".x-aaaaaa": plain,

		"index.lock": "", ".git/HEAD.lock": "", "uv.lock": "", ".lock": "", "x.locked": plain,
		"objects/3a/tmp_obj_XyZ123": "", "objects/pack/tmp_pack_XyZ123": "", "tmp_idx_1": "", "tmp_obj_": "", "tmp_obj": plain, "x_tmp_obj_1": plain,
		"sedAbC123": "", "d/sedAbC123": "", "sedation": plain, "sediments": "", "sedimenta.txt": plain, "sed": plain,

		"x.swp/y": "", "x.tmp/y.swp": "", "a//b": plain, "a//b.tmp": "a//b",
	} {
		staged, final := usual.Match(key)
		if staged != (want != plain) || staged && final != want || !staged && final != "" {
			t.Errorf("%q: %v, %q, expected %q", key, staged, final, want)
		}
	}
}

func TestPatternsOfOnesOwn(t *testing.T) {
	// Patterns stage what they match, below directories, too. They foretell nothing, unless they are among the usual ones. None, and
	// an empty list, stage nothing.
	for _, c := range []struct{ patterns, staged, plain string }{
		{"*.part", "a.part d.part/x", "a.tmp a.part2"},
		{"*.tm[p]", "a.tmp a.tmp/b", "a.tm"},
		{`\*`, "* d/*", "a"},
		{"work-[0-9]*", "work-1 a/work-22/b", "work-a work"},
		{"*", "a a/b d/", ""},
		{"?", "a aa/b", "aa aa/bb/"},
		{"", "", "a a.tmp .tmp"},
	} {
		own := temporary(t, strings.Fields(c.patterns)...)
		for _, key := range strings.Fields(c.staged) {
			if staged, final := own.Match(key); !staged || final != "" {
				t.Errorf("%s, %q: %v, %q", c.patterns, key, staged, final)
			}
		}
		for _, key := range strings.Fields(c.plain) {
			if staged, _ := own.Match(key); staged {
				t.Errorf("%s stages %q", c.patterns, key)
			}
		}
	}
	if _, final := temporary(t, "*.part", "*.tmp").Match("a.tmp"); final != "a" {
		t.Errorf("a usual pattern beside one's own foretells %q", final)
	}
	if _, final := temporary(t, "a*", "*.tmp").Match("a.tmp"); final != "" {
		t.Errorf("a name that matches one's own, too, foretells %q", final)
	}
	if staged, _ := Temporary(nil).Match("a.tmp"); staged {
		t.Error("no patterns stage a name")
	}
}

func TestWrongPatterns(t *testing.T) {
	// A pattern that cannot be meant is refused by name, with the cure.
	for wrong, says := range map[string]string{
		"": "leave it out", "a/b": `"a/b" has a slash`, "/": "has a slash", "*.tmp/": "one name's pattern", "[a": `"[a" is no pattern`, "[]": "is no pattern", `a\`: "is no pattern", "x[": "needs its ]",
	} {
		if got, err := ParseTemporary([]string{"*.tmp", wrong}); err == nil || !strings.Contains(err.Error(), says) || got != nil {
			t.Errorf("%q: %v, %v", wrong, got, err)
		}
	}
}

func TestANameThatIsNotStagedCostsNoMemory(t *testing.T) {
	// Names are matched at each close and while parts are sent: what is not staged allocates nothing, however deep it lies.
	usual := temporary(t, DefaultTemporary()...)
	key := strings.Repeat("some-directory.d/", 8) + ".shard-00001-of-00008.safetensors"
	if n := testing.AllocsPerRun(100, func() { usual.Match(key) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestTheUsualPatterns(t *testing.T) {
	// A link that names no patterns has these, and the table of docs/semantics.md has them in their order.
	want := strings.Fields("*.tmp *.tmp.* *.tmp-* .tmp* *.incomplete tmp-checkpoint-* *.orbax-checkpoint-tmp* *.swp .*.?????? *.lock tmp_obj_* tmp_pack_* tmp_idx_* tmp_rev_* tmp_bitmap_* sed??????")
	if got := DefaultTemporary(); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	page, err := os.ReadFile("../docs/semantics.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "\n| pattern | ")
	table, _, _ = strings.Cut(table, "\n\n")
	var rows []string
	for row := range strings.Lines(table) {
		if cell := strings.Split(row, "`"); strings.HasPrefix(row, "| `") {
			rows = append(rows, cell[1])
		}
	}
	if !slices.Equal(rows, want) {
		t.Errorf("the page has %q", rows)
	}
}

func BenchmarkMatch(b *testing.B) {
	usual := temporary(b, DefaultTemporary()...)
	for b.Loop() {
		usual.Match("runs/2024-05-01/step-000500/model-00001-of-00008.safetensors")
	}
}

func temporary(t testing.TB, patterns ...string) Temporary {
	t.Helper()
	all, err := ParseTemporary(patterns)
	if err != nil {
		t.Fatal(err)
	}
	return all
}
