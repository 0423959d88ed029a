package hearthtest

import (
	"fmt"
	"io"
	"iter"
	"strings"

	"github.com/zeebo/xxh3"
)

// File is one file of a data set. Its bytes are those of Fill.
type File struct {
	// Path within the data set, with "/" between names. The key is the loader's prefix and Path.
	// Path alone seeds the bytes.
	Path string
	// Size in bytes.
	Size int64
}

// Group is a number of directories with files of one kind.
type Group struct {
	// Dir names the directories. With Dirs > 1 a number is added.
	Dir string
	// Dirs and Files count directories, and files in each.
	Dirs, Files int
	// Min and Max bound a file's size in bytes; the size follows from the path.
	Min, Max int64
}

// DataSet is a set of files whose names, sizes and bytes follow from its groups.
type DataSet struct {
	// Name as BENCH has it.
	Name string
	// Groups in order.
	Groups []Group
}

// Sets returns the data sets of BENCH.
func Sets() []DataSet {
	return []DataSet{
		{Name: "D1", Groups: []Group{{Dir: "d1/class", Dirs: 100, Files: 200, Min: 60 << 10, Max: 160 << 10}}},
		{Name: "D1s", Groups: []Group{{Dir: "d1s/class", Dirs: 100, Files: 200, Min: 16 << 10, Max: 16 << 10}}},
		{Name: "D2", Groups: []Group{{Dir: "d2", Dirs: 1, Files: 8, Min: 512 << 20, Max: 512 << 20}}},
		{Name: "D3", Groups: []Group{
			{Dir: "d3/dir", Dirs: 1000, Files: 1000, Min: 1 << 10, Max: 4 << 10},
			{Dir: "d3/wide", Dirs: 1, Files: 100_000, Min: 1 << 10, Max: 4 << 10}}},
		{Name: "D4", Groups: []Group{{Dir: "d4", Dirs: 1, Files: 2000, Min: 5 << 20, Max: 5 << 20}}},
	}
}

// Set returns the data set of a name: D1, D1s, D2, D3 or D4.
func Set(name string) (DataSet, error) {
	for _, s := range Sets() {
		if strings.EqualFold(s.Name, name) {
			return s, nil
		}
	}
	return DataSet{}, fmt.Errorf("no data set %q: there are D1, D1s, D2, D3 and D4", name)
}

// Reduced returns the set with at most dirs directories of at most files files in each group. 0
// leaves a number as it is. The remaining files keep their names, sizes and bytes.
func (s DataSet) Reduced(dirs, files int) DataSet {
	groups := make([]Group, len(s.Groups))
	for i, g := range s.Groups {
		if dirs > 0 {
			g.Dirs = min(g.Dirs, dirs)
		}
		if files > 0 {
			g.Files = min(g.Files, files)
		}
		groups[i] = g
	}
	s.Groups = groups
	return s
}

// Files yields the files, directory by directory.
func (s DataSet) Files() iter.Seq[File] {
	return func(yield func(File) bool) {
		for _, g := range s.Groups {
			for d := range g.Dirs {
				for f := range g.Files {
					if !yield(g.file(d, f)) {
						return
					}
				}
			}
		}
	}
}

func (g Group) file(dir, file int) File {
	name := g.Dir
	if g.Dirs > 1 {
		name += fmt.Sprintf("%04d", dir)
	}
	f := File{Path: fmt.Sprintf("%s/%06d.bin", name, file), Size: g.Min}
	if g.Max > g.Min {
		f.Size += int64(xxh3.HashString(f.Path) % uint64(g.Max-g.Min+1))
	}
	return f
}

// Count returns the number of files and their bytes.
func (s DataSet) Count() (files int, bytes int64) {
	for f := range s.Files() {
		files++
		bytes += f.Size
	}
	return files, bytes
}

// Reader returns a version of the file. It can seek, so that a request can be sent again.
func (f File) Reader(version int) *io.SectionReader {
	return io.NewSectionReader(generator{f.Path, version}, 0, f.Size)
}

type generator struct {
	path    string
	version int
}

// ReadAt makes the bytes at off.
func (g generator) ReadAt(p []byte, off int64) (int, error) {
	Fill(p, g.path, off, g.version)
	return len(p), nil
}
