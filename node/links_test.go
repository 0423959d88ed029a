package node

import (
	"sync"
	"testing"

	"github.com/hearthfs/hearth/node/admin"
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
