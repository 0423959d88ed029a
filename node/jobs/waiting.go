package jobs

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/hearthfs/hearth/node/machine"
	"github.com/hearthfs/hearth/warmup"
)

// Each job that waits its turn takes memory, a record on disk, and room for its list. So their number is
// bounded: a prolog that goes wrong in a loop is refused instead.
const (
	mostWaiting = 256     // as many as pins; eight of them are at work at once
	mostLists   = 4 << 30 // bytes; above this no job with a list begins; one list has at most 1 GiB
)

// begin begins a job unless too many are not over. Jobs that begin at the same time count, since the engine
// does not list them yet. Their lists do not count.
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
