package node

import (
	"cmp"
	"strings"
	"sync"
	"testing"

	"github.com/hearthfs/hearth/node/admin"
	"github.com/hearthfs/hearth/node/config"
)

func TestMountsOfOneNewOriginAtOnceShareItsLink(t *testing.T) {
	// Lines of fstab are mounted at the same time. The first that asks for an origin makes its link, the
	// others get that link, and none is refused.
	n := start(t, "", func(c *Config) { c.Links = nil })
	o := Origin{URL: "file://" + t.TempDir()}
	var all sync.WaitGroup
	var made [16]*link
	for i := range made {
		all.Go(func() {
			var err error
			if made[i], _, err = n.linkTo(t.Context(), admin.MountRequest{Origin: &o}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for _, l := range made {
		if l != made[0] || l == nil {
			t.Errorf("links %p and %p of one origin", l, made[0])
		}
	}
	if len(n.links.making) != 0 {
		t.Errorf("%d links are in the making still", len(n.links.making))
	}
}

func TestAnEmptyPrefixIsToBeWritten(t *testing.T) {
	// Results go to a prefix that has none yet. To be read it is most likely a mistake, and an object is no directory for anybody.
	_, _, c := outage(t, "immutable")
	n := start(t, "", func(o *Config) { o.Links, o.Cache = nil, c.Cache })
	for prefix, want := range map[string]string{"runs": "", "dir/known": "is one object"} {
		// In this order: a link that is there, since somebody writes to it, is read, too.
		for _, x := range [][2]string{{"", cmp.Or(want, "nothing lies below")}, {config.WriteThrough, want}, {"", want}} {
			write, want := x[0], x[1]
			o := c.Links[0].Origin
			o.URL += "/" + prefix
			r := admin.MountRequest{Mount: Mount{Write: write}, Origin: &o}
			if _, _, err := n.linkTo(t.Context(), r); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%s, write %q: %v", prefix, write, err)
			}
		}
	}
	o := c.Links[0]
	o.Origin.URL, o.Write = "s3://data/results", config.WriteThrough
	start(t, "", func(n *Config) { n.Links = []Link{o} })
}
