package draft

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
)

// Temporary are patterns of names that programs rename or remove before anybody else is to see them. What has such a name, or lies
// below a directory that has one, is staged: it stays on this node until it has another name. It never changes, and may be used by
// many goroutines. nil matches nothing.
type Temporary []pattern

// pattern is a shell pattern of one name of a path.
type pattern struct {
	shape string
	// literal is a text that all names have which match, so that most keys cost no more than a search for it. "" if none is known.
	literal string
	// final is the name that a matching one is renamed to, "" where it does not tell. nil means that it never does.
	final func(name string) string
}

// defaultPatterns are the patterns with their makers. Each tool here always renames or removes what it gives such a name.
func defaultPatterns() []pattern {
	return []pattern{
		// PyTorch's distributed checkpoint renames .metadata.tmp to .metadata.
		{shape: "*.tmp", final: before(".tmp")},
		// Triton 2 renames FILE.tmp.pid_PID_RANDOM in its cache of compiled kernels.
		{shape: "*.tmp.*", final: before(".tmp.")},
		// The npm package atomically, which writes the settings of many programs, renames FILE.tmp-TIMERANDOM.
		{shape: "*.tmp-*", final: before(".tmp-")},
		// The Rust crate tempfile makes .tmpRANDOM beside the target. safetensors 0.8 saves so.
		{shape: ".tmp*"},
		// huggingface_hub downloads to blobs/ETAG.incomplete; datasets prepares a data set in DIR.incomplete.
		{shape: "*.incomplete", final: before(".incomplete")},
		// The Trainer of transformers 4.36 to 4.38 renames tmp-checkpoint-STEP to checkpoint-STEP. Some later ones have a random word for STEP.
		{shape: "tmp-checkpoint-*", final: checkpoint},
		// Orbax saves to NAME.orbax-checkpoint-tmp-TIME, items within it to the like, and renames each when it is whole.
		{shape: "*.orbax-checkpoint-tmp*", final: before(".orbax-checkpoint-tmp")},
		// vim removes its swap file .NAME.swp when the editor ends.
		{shape: "*.swp"},
		// rsync receives to .NAME.RANDOM and renames.
		{shape: ".*.??????", final: received},
		// git renames or removes index.lock, HEAD.lock and its other locks.
		{shape: "*.lock"},
		// git writes a loose object to tmp_obj_RANDOM and renames it to its hash; a pack and what belongs to it likewise, and
		// git repack by way of .tmp-PID-pack-HASH, without a copy where that is refused.
		{shape: "tmp_obj_*"}, {shape: "tmp_pack_*"}, {shape: "tmp_idx_*"}, {shape: "tmp_rev_*"}, {shape: "tmp_bitmap_*"},
		// GNU sed -i writes sedRANDOM and renames it to the file that it edits.
		{shape: "sed??????"},
	}
}

// DefaultTemporary are the patterns of a link that names none.
func DefaultTemporary() (shapes []string) {
	for _, p := range defaultPatterns() {
		shapes = append(shapes, p.shape)
	}
	return shapes
}

// ParseTemporary reads shell patterns (*, ? and [a-z], as of path.Match) of one name of a path each. Those of DefaultTemporary
// foretell final names, others never do. The error names the pattern that is wrong, and the cure.
func ParseTemporary(patterns []string) (t Temporary, err error) {
	known := defaultPatterns()
	for _, shape := range patterns {
		_, err := path.Match(shape, "")
		switch {
		case shape == "":
			return nil, errors.New("an empty pattern matches no name: leave it out")
		case strings.Contains(shape, "/"):
			return nil, fmt.Errorf("%q has a slash, and no name has: give one name's pattern, such as *.tmp, which means all below a directory of that name, too", shape)
		case err != nil:
			return nil, fmt.Errorf("%q is no pattern: a [ needs its ], and a \\ something behind it", shape)
		}
		p := pattern{shape: shape}
		if i := slices.IndexFunc(known, func(k pattern) bool { return k.shape == shape }); i >= 0 {
			p = known[i]
		}
		if !strings.ContainsAny(shape, `[\`) { // between * and ? stands what it says
			for text := range strings.FieldsFuncSeq(shape, func(r rune) bool { return r == '*' || r == '?' }) {
				if len(text) > len(p.literal) {
					p.literal = text
				}
			}
		}
		t = append(t, p)
	}
	return t, nil
}

// Match reports whether what has that key is staged. The key is without the link's prefix; a directory's may end with a slash. final
// is the key that it is to be renamed to, "" where its names do not tell: its upload may begin under that key, and a rename to
// another one is nothing unusual. It takes no memory for keys that are not staged.
func (t Temporary) Match(key string) (staged bool, final string) {
	for i := range t {
		if t[i].in(key) {
			return true, t.final(key)
		}
	}
	return false, ""
}

// in reports whether a name of the key matches.
func (p *pattern) in(key string) bool {
	if !strings.Contains(key, p.literal) {
		return false
	}
	for found := true; found; {
		var name string
		name, key, found = strings.Cut(key, "/")
		if p.matches(name) {
			return true
		}
	}
	return false
}

func (p *pattern) matches(name string) bool {
	ok, _ := path.Match(p.shape, name) // ParseTemporary has had the error
	return ok && name != ""            // of "a//b", and behind a last slash, by the pattern *
}

// final is the key with each name that matches replaced by what it foretells. It is "" if one of them does not.
func (t Temporary) final(key string) string {
	names := strings.Split(key, "/")
	for i, name := range names {
		to, ok := t.renamed(name)
		if !ok {
			return ""
		}
		names[i] = to
	}
	return strings.Join(names, "/")
}

// renamed is what a name foretells: itself if it matches nothing. false means that the patterns which it matches do not all tell, or
// do not agree, or tell a name that is staged itself (a.tmp of a.tmp.tmp).
func (t Temporary) renamed(name string) (to string, ok bool) {
	to = name
	for i := range t {
		p := &t[i]
		if !p.matches(name) {
			continue
		}
		if p.final == nil {
			return "", false
		}
		told := p.final(name) // shorter than name
		if told == "" || told == "." || told == ".." || to != name && to != told {
			return "", false
		}
		to = told
	}
	return to, to == name || !slices.ContainsFunc(t, func(p pattern) bool { return p.matches(to) })
}

// before returns the name before the last mark.
func before(mark string) func(string) string {
	return func(name string) string { return name[:max(0, strings.LastIndex(name, mark))] }
}

// checkpoint is the directory that transformers renames to. A random word in the step's place does not tell the step.
func checkpoint(name string) string {
	name = strings.TrimPrefix(name, "tmp-")
	if strings.Trim(strings.TrimPrefix(name, "checkpoint-"), "0123456789") != "" || strings.HasSuffix(name, "-") {
		return ""
	}
	return name
}

// received is the file that rsync renames to. Its random text are six letters or digits. A file whose own name begins with a dot
// is foretold without it: rsync gives .x and x the same temporary name, and x is the usual one.
func received(name string) string {
	dot := len(name) - len(".RANDOM")
	if dot < 1 || name[dot] != '.' {
		return ""
	}
	for _, c := range []byte(name[dot+1:]) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return ""
		}
	}
	return name[1:dot]
}
