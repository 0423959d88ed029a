package draft

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/hearthfs/hearth"
)

// What was opened on a base, or made new, and whose name another object has by now, is a conflict: the draft gives the name up, is
// kept under another one, and is published only when somebody asks for that. Who has it open goes on with it, and each close tells
// of the conflict.

// keptError is what publishing a conflict answers: the draft's Why.
type keptError struct{ why string }

// Error says which object is in the way, and where the draft is.
func (e *keptError) Error() string { return e.why }

// Unwrap makes it an ErrConflict.
func (e *keptError) Unwrap() error { return hearth.ErrConflict }

// maxSame bounds the conflicts of one name and one second.
const maxSame = 1000

// conflict gives the name up, after a publish that failed with err; busy is held. A draft that nobody has written and nobody has
// open is removed: it has nothing that would be lost.
func (d *Draft) conflict(err error) error {
	s := d.s
	if s.o.Conflict == nil || !errors.Is(err, hearth.ErrConflict) || errors.Is(err, hearth.ErrUnanswered) || d.Info().IsDir() {
		return err
	}
	was := d.Info()
	to := s.o.Conflict(was.Name)
	if to == was.Name {
		return err
	}
	s.mu.Lock()
	d.mu.Lock()
	if d.removed || d.gone || d.nameless {
		d.mu.Unlock()
		s.mu.Unlock()
		return err
	}
	cut := d.left && d.base != nil && d.base.Size > 0 // before the restart
	if d.gen == 1 && !d.recovered && !cut && d.users == 0 && d.size == 0 {
		s.unnameLocked(d)
		d.removed = true // at once: nobody may hold it from now on
		d.mu.Unlock()
		s.mu.Unlock()
		s.log("%s was made by somebody else, too, and nothing was written here: that one stays", was.Key)
		failed := d.save(true) // removed: else it could be there again after a crash
		if failed == nil {
			failed = d.erase()
		}
		if failed != nil {
			s.log("%v", failed)
		}
		d.conflicted(was, nil)
		return nil
	}
	s.unnameLocked(d)
	name := to
	for i := 2; i < maxSame; i++ {
		if _, taken := s.findLocked(name); !taken {
			break
		}
		name.Key = to.Key + "-" + strconv.Itoa(i)
	}
	d.name, d.named, d.beside = name, s.o.Now(), true
	// Under the new name nothing was published, and nothing is to be replaced.
	d.attr.Exclusive, d.attr.New = d.attr.Exclusive && d.base == nil, true
	d.base, d.published, d.told, d.clean = nil, nil, nil, 0
	err = fmt.Errorf("%w; it is kept as %s", err, name.Key)
	d.setLocked(Failed, err.Error())
	s.nameLocked(d)
	d.mu.Unlock()
	s.mu.Unlock()
	if failed := d.save(false); failed != nil {
		s.log("%v", failed) // the next start finds the conflict again
	}
	d.conflicted(was, err)
	return err
}

func (d *Draft) conflicted(was Info, err error) {
	if d.s.o.Conflicted != nil {
		d.s.o.Conflicted(d, was, err)
	}
}

// Claim makes a conflict an ordinary draft of the name that it is kept under: the next Publish sends it there, unless the bucket has
// an object of that name. Of another draft it changes nothing.
func (d *Draft) Claim() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.beside {
		d.beside, d.attr.Exclusive, d.changed = false, false, true
		d.setLocked(Opened, "")
	}
}
