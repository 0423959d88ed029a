package jobs

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/hearthfs/hearth/node/machine"
	"github.com/hearthfs/hearth/warmup"
)

// Jobs that are not over wait for their turn without an end, each in memory and on
// disk, and with its list: a prolog that goes wrong in a loop is told so instead.
const (
	mostWaiting = 256     // as many as pins; eight of them are at work
	mostLists   = 4 << 30 // bytes; beyond this, no job with a list begins: one has at most 1 GiB
)

// begin begins a job unless too many are not over. Those that begin at the same time
// count, since they are in no list yet; but not their lists.
func (j *Jobs) begin(list bool, do func() error) error {
	n := j.begun.Add(1)
	defer j.begun.Add(-1)
	lists := int64(0)
	for _, v := range j.engine.List() {
		if v.State.Over() {
			continue
		}
		n++
		if info, err := os.Stat(filepath.Join(j.parts.Dir, v.ID+".list")); err == nil {
			lists += info.Size()
		}
	}
	switch {
	case n > mostWaiting:
		return warmup.Refusal(fmt.Sprintf("%d warm-ups are at work or queued, and that is the most: wait for some, or end them with hearth jobs cancel ID (hearth jobs lists them)", mostWaiting))
	case list && lists >= mostLists:
		return warmup.Refusal(fmt.Sprintf("the lists of warm-ups at work or queued take %s, and %s is the most: wait for some, end them with hearth jobs cancel ID, or name directories",
			machine.SizeText(lists), machine.SizeText(mostLists)))
	}
	return do()
}
