package hearthtest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"github.com/zeebo/xxh3"

	"github.com/hearthfs/hearth"
)

// PageSize is the size in bytes of the pages, each of which names its own version.
const PageSize = 4096

// headerSize is the size of a page's header: the version, and a seal over (path, page, version).
const headerSize = 16

// Fill writes bytes [off, off+len(p)) of a version of a path into p.
func Fill(p []byte, path string, off int64, version int) {
	file := xxh3.HashString(path)
	for len(p) > 0 {
		page, skip := off/PageSize, int(off%PageSize)
		n := min(len(p), PageSize-skip)
		if skip == 0 && n == PageSize {
			fillPage(p[:n], file, page, version)
		} else {
			var whole [PageSize]byte
			fillPage(whole[:], file, page, version)
			copy(p[:n], whole[skip:])
		}
		p, off = p[n:], off+int64(n)
	}
}

// Check compares p with bytes [off, off+len(p)) of a version of a path. Its error says where they
// first differ, and what stands there instead.
func Check(p []byte, path string, off int64, version int) error {
	file := xxh3.HashString(path)
	var want [PageSize]byte
	for at := 0; at < len(p); {
		page, skip := (off+int64(at))/PageSize, int((off+int64(at))%PageSize)
		n := min(len(p)-at, PageSize-skip)
		fillPage(want[:], file, page, version)
		if got := p[at : at+n]; !bytes.Equal(got, want[skip:skip+n]) {
			first := 0
			for got[first] == want[skip+first] {
				first++
			}
			return fmt.Errorf("%s: version %d differs at byte %d: %s", path, version, off+int64(at+first), describe(got, skip, file, page))
		}
		at += n
	}
	return nil
}

// VersionAt returns the version of a path that the page at off names. off is a multiple of
// PageSize, and p holds at least the page's first 16 bytes.
func VersionAt(p []byte, path string, off int64) (version int, ok bool) {
	return versionOf(p, xxh3.HashString(path), off/PageSize)
}

func describe(got []byte, skip int, file uint64, page int64) string {
	if v, ok := versionOf(got, file, page); skip == 0 && ok {
		return fmt.Sprintf("the page names version %d", v)
	}
	if len(bytes.Trim(got, "\x00")) == 0 {
		return "all zero"
	}
	return "not this file's page"
}

func versionOf(p []byte, file uint64, page int64) (int, bool) {
	if len(p) < headerSize {
		return 0, false
	}
	version := int(binary.LittleEndian.Uint64(p))
	return version, binary.LittleEndian.Uint64(p[8:]) == seed(file, page, version)
}

func seed(file uint64, page int64, version int) uint64 {
	return mix(mix(file+uint64(page)*0x9e3779b97f4a7c15) + uint64(version))
}

// fillPage runs SplitMix64 over the page: a word costs a nanosecond, and any
// page can be made without the ones before it. The race detector would look at
// each word and take 30 times as long.
//
//go:norace
func fillPage(p []byte, file uint64, page int64, version int) {
	s := seed(file, page, version)
	binary.LittleEndian.PutUint64(p, uint64(version))
	binary.LittleEndian.PutUint64(p[8:], s)
	for i := headerSize; i < PageSize; i += 8 {
		s += 0x9e3779b97f4a7c15
		binary.LittleEndian.PutUint64(p[i:], mix(s))
	}
}

// mix is SplitMix64's finalizer.
//
//go:norace
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// CheckSums compares the checksums that a View has, if any, with those of its bytes.
func CheckSums(t testing.TB, v *hearth.View) {
	t.Helper()
	sums, data := v.Sums().Load(), v.Bytes()
	if sums == nil {
		return
	}
	var want []uint64
	for ; len(data) > 0; data = data[min(hearth.PieceSize, len(data)):] {
		want = append(want, xxh3.Hash(data[:min(hearth.PieceSize, len(data))]))
	}
	if !slices.Equal(*sums, want) {
		t.Errorf("%d bytes have sums %x, want %x", v.Len(), *sums, want)
	}
}
