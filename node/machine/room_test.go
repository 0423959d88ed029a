package machine

import (
	"strings"
	"testing"
)

func TestWords(t *testing.T) {
	// A directory with room is shown with its budget. One that lacks room is shown with what it may hold now.
	// If that is less than a block, the floor and the cure are shown, too.
	const cure = ": 4.0 MiB of its file system are to stay free; make room there, lower --cache-free-floor"
	for _, c := range []struct {
		d        Room
		of, lack string
	}{
		{Room{Budget: 3 << 39, Limit: 3 << 39}, "/c up to 1.5 TiB", ""},
		{Room{Budget: 1 << 30, Limit: 2 << 20}, "/c up to 2.0 MiB now (of 1.0 GiB: its file system is to keep 4.0 MiB free)", ""},
		{Room{Budget: 1 << 30, Limit: 9 << 10}, "/c up to 9 KiB now (of 1.0 GiB: its file system is to keep 4.0 MiB free)", "only 9 KiB can be cached in /c" + cure},
		{Room{Budget: 1 << 30}, "/c up to 0 KiB now (of 1.0 GiB: its file system is to keep 4.0 MiB free)", "nothing can be cached in /c" + cure},
		{Room{Budget: 9 << 10, Limit: 9 << 10}, "/c up to 9 KiB", ""},
	} {
		c.d.Path, c.d.Floor = "/c", 4<<20
		if of := c.d.String(); of != c.of {
			t.Errorf("%+v: %q, want %q", c.d, of, c.of)
		}
		if lack := c.d.Lack(); !strings.HasPrefix(lack, c.lack) || (lack == "") != (c.lack == "") {
			t.Errorf("%+v: %q, want %q", c.d, lack, c.lack)
		}
	}
}
