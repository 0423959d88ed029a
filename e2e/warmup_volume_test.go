package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"

	"github.com/hearthfs/hearth/node/config"
	"github.com/hearthfs/hearth/volume"
	"github.com/hearthfs/hearth/warmup"
)

// formatVolume makes a file of so many bytes with an empty volume for a node of its own.
func (e *env) formatVolume(name string, size int64) string {
	e.Helper()
	name = e.path(name)
	e.must(os.WriteFile(name, nil, 0o600), "make the volume's file")
	e.must(os.Truncate(name, size), "give the volume its size")
	f, err := volume.OpenFile(name)
	e.must(err, "open the volume's file")
	defer func() { _ = f.Close() }()
	cluster, err := config.ClusterID(config.Membership{})
	e.must(err, "find the cluster's id")
	_, err = volume.MakeVolume(f, volume.FormatOptions{Cluster: cluster})
	e.must(err, "format the volume")
	return name
}

// warmUpVolume warms up onto a volume on a file. The node is killed by SIGKILL in the midst, and goes on with the job.
// It is killed once more, and its cache directory is deleted. A new one finds all of the set on the volume, and an
// epoch asks the origin for no byte.
func warmUpVolume(e *env) {
	o := e.origin()
	list := e.load(o, warmSet(e.level))
	total := warmup.Tally{Files: int64(len(list)), Bytes: sum(list)}
	p := e.proxy(o)
	set := settings{endpoint: p.endpoint, extra: fmt.Sprintf("volumes: [%q]", e.formatVolume("volume", total.Bytes*2))}
	h := e.mount(o, set)
	at := rand.New(rand.NewPCG(e.seed(), 1)).Int64N(total.Bytes / 2)
	out, code := h.ask("warmup", "/", "--to-volume", "--detach")
	if code != 0 {
		e.Fatalf("warmup --to-volume --detach: exit %d, %s", code, out)
	}
	id := strings.TrimSpace(out)
	e.eventually(fmt.Sprintf("%d bytes on the volume", at), func() bool { return h.latest().BytesDone > at })
	h.kill9()
	h = e.mount(o, set)
	if v := h.job(0, "jobs", "wait", id); v.State != warmup.Done || v.Counters.Sum() != total || !v.ToVolume {
		e.Errorf("after the kill: %+v, want %+v", v, total)
	}
	e.detail = fmt.Sprintf("killed after %d of %d bytes; %.3f of the bytes", at, total.Bytes, float64(p.Stats().Get.Bytes)/float64(total.Bytes))
	h.kill9()
	e.must(os.RemoveAll(e.path("cache")), "delete the cache directory")
	h = e.mount(o, set)
	p.Reset() // a start asks what the origin is
	if v := h.job(0, "warmup", "--to-volume", "--check", "/"); v.Checked.Whole != total {
		e.Errorf("a check of the volume: %+v, want %+v", v.Checked, total)
	}
	e.good("from the volume", epoch(h.dir, list, 5, 4, 0))
	if n := p.Stats().Get.Bytes; n != 0 {
		e.Errorf("the origin was asked for %d bytes of what the volume has", n)
	}
	h.quit()
}
