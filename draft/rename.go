package draft

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hearthfs/hearth"
)

// ErrPublished says that a draft cannot be renamed, since the bucket has an object of it under its name.
var ErrPublished = errors.New("the draft was published under its name: copy the object")

// Rename moves the name of a draft of which nothing was published. A draft that has the new name is replaced: it goes on
// nameless for whoever holds it. only is RENAME_NOREPLACE: it is published only if its key has no object. With publish the bucket
// has it when Rename returns. After an error the names are as before, but where nobody knows whether it was published: it
// is, as soon as the origin can be asked. Rename waits for a publish that runs: ErrPublished is its answer if that succeeds.
func (d *Draft) Rename(ctx context.Context, n Name, only, publish bool) error {
	d.mu.Lock()
	if d.pinLocked() == nil { // its record stays until that of the replaced one is gone: the next process would publish that
		defer d.unpin()
	} // else what follows says why
	d.mu.Unlock()
	m := move{d: d, to: n}
	if err := m.do(ctx, only); err != nil {
		return fmt.Errorf("rename draft to %s: %w", n.Key, err)
	}
	if publish {
		if _, err := d.publishAs(ctx, nil, keepsName); err != nil {
			return errors.Join(err, m.undo(ctx))
		}
	}
	return m.end(ctx)
}

// keepsName is for a name that goes back to what it was.
func keepsName(err error) error { return err }

// Renamed tells a draft that its object, of that ETag, was copied: it has the new name, and the object o there. It returns the
// ETag that the draft's object had under the old name: another one, if it was published since. What was written or published since
// is to be published under the new name.
func (d *Draft) Renamed(ctx context.Context, n Name, etag string, o hearth.Object) (old string, err error) {
	if err := d.lock(ctx); err != nil {
		return "", err
	}
	defer d.unlock()
	o.Link = n.Link
	d.s.mu.Lock()
	d.mu.Lock()
	if d.removed || d.gone {
		d.mu.Unlock()
		d.s.mu.Unlock()
		return etag, nil
	}
	d.s.unnameLocked(d)
	if old = etag; d.base != nil && d.base.ETag != etag {
		old, d.clean, d.published = d.base.ETag, 0, nil
		d.setLocked(Opened, "")
	}
	d.name, d.named, d.base, d.under, d.told, d.changed = n, d.s.o.Now(), &o, &o, &o, true
	d.s.nameLocked(d)
	d.mu.Unlock()
	d.s.mu.Unlock()
	return old, d.save(false)
}

// RenameDir moves the draft of a directory and those of all that is below it, of which nothing was published (else
// ErrPublished). Those for which publish says so are in the bucket when it returns: all at once, but the file that was
// written last, which goes last, since programs make such a file to say that all is there. After an error the names are as
// before; what the bucket has got by then is taken back by unwrite.
func (s *Store) RenameDir(ctx context.Context, from, to Name, publish func(Info) bool, unwrite func(context.Context, hearth.Object) error) (err error) {
	all := s.moves(from, to)
	slices.SortStableFunc(all, func(a, b move) int { return a.d.wrote().Compare(b.d.wrote()) })
	if err := s.setMoving(from, to.Key, false); err != nil {
		return err
	}
	slices.Reverse(all) // the directory itself is the last to move: as long as it has its old name, others may have, too
	moved := 0
	defer func() { // those that are published go then
		for _, m := range all[:moved] {
			m.d.Release()
		}
	}()
	defer func() { err = s.endDir(context.WithoutCancel(ctx), from, to, all[:moved], unwrite, err) }()
	for ; moved < len(all); moved++ {
		m := &all[moved]
		if err := m.d.Hold(); errors.Is(err, syscall.ESTALE) && from == to { // it was published meanwhile, and is gone
			all = slices.Delete(all, moved, moved+1)
			moved--
			continue
		} else if err != nil {
			return fmt.Errorf("rename drafts to %s: %w", to.Key, err)
		}
		if err := m.do(ctx, false); err != nil {
			m.d.Release()
			return fmt.Errorf("rename drafts to %s: %w", to.Key, err)
		}
		if moved == len(all)-1 && from != to {
			all = append(all, s.moves(from, to)...) // that were made there meanwhile
		}
	}
	if err := s.setMoving(to, "", false); err != nil {
		return err
	}
	due := slices.DeleteFunc(slices.Clone(all), func(m move) bool { return !publish(m.d.Info()) })
	slices.Reverse(due)
	if len(due) == 0 {
		return nil
	}
	send := func(ctx context.Context, m move) error {
		_, err := m.d.PublishAt(ctx, m.to)
		if errors.Is(err, ErrRenamed) { // by itself, to a name that nobody has judged here
			return nil
		}
		return err
	}
	g, publishing := newBeside(ctx, s.o.Parallel)
	last := len(due) - 1
	for _, m := range due[:last] {
		g.run(func() error { return send(publishing, m) })
	}
	if err := g.wait(); err != nil {
		return err
	}
	return send(ctx, due[last])
}

// endDir ends the rename of a directory, or after an error takes it back.
func (s *Store) endDir(ctx context.Context, from, to Name, moved []move, unwrite func(context.Context, hearth.Object) error, err error) error {
	if err == nil {
		for _, m := range moved {
			err = errors.Join(err, m.end(ctx))
		}
		return err
	}
	if from != to {
		err = errors.Join(err, s.setMoving(to, from.Key, true)) // from here on a restart goes back, too
	}
	// The file that was written last, which says that all is there, is the first, and the directory itself the last, as before.
	slices.SortStableFunc(moved, func(a, b move) int { return cmp.Compare(isOf(a.from, from), isOf(b.from, from)) })
	for _, m := range moved {
		err = errors.Join(err, m.takeBack(ctx, unwrite))
	}
	return errors.Join(err, s.setMoving(from, "", false))
}

// isOf is 1 if the names are the same, else 0.
func isOf(a, b Name) int {
	if a == b {
		return 1
	}
	return 0
}

// moves are the renames of a directory's draft and of all below it.
func (s *Store) moves(from, to Name) (all []move) {
	s.Below(from.Link, from.Key, func(d *Draft) bool {
		all = append(all, move{d: d, to: Name{to.Link, to.Key + strings.TrimPrefix(d.Info().Key, from.Key)}})
		return true
	})
	return all
}

// setMoving notes that a directory and all below it are being renamed, so that the next process has all names or none. "" says that
// they are not any more. back says that the rename is taken back: what was published is, too.
func (s *Store) setMoving(dir Name, to string, back bool) error {
	d, ok := s.Find(dir)
	if !ok {
		return nil
	}
	d.mu.Lock()
	same := d.moving == to
	d.moving, d.back = to, back
	d.mu.Unlock()
	if same {
		return nil
	}
	return d.save(false)
}

// moveOn goes on with the rename of a directory that the end of the last process has broken off.
func (s *Store) moveOn(dir *Draft) error {
	from, to := dir.name, Name{dir.name.Link, dir.moving}
	if from != to {
		for _, m := range slices.Backward(s.moves(from, to)) { // itself last, as before
			if m.d.pending != nil { // under its old name: it is published there
				continue
			}
			if dir.back {
				m.d.unpublish() // saved with the name; Clean deletes the object
			}
			err := m.swap(s.ctx, false)
			if err == nil {
				err = m.drop()
			}
			if err != nil && !errors.Is(err, ErrPublished) {
				return err
			}
		}
	}
	return s.setMoving(to, "", false)
}

// wrote is when the draft was written last. That of a directory is before all files'.
func (d *Draft) wrote() time.Time {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.name.IsDir() {
		return time.Time{}
	}
	return d.wroteAt
}

// move is a rename that can be undone until its end.
type move struct {
	d        *Draft
	to, from Name
	since    time.Time // when d had got its name
	attr     Attr      // that d had with it
	conflict bool      // as d was
	replaced *Draft    // nil means that no draft had the new name
	was      Info      // what that was
}

// do moves the name, and stops what the replaced one sends. It waits for the answer to a request that makes the replaced one's object:
// broken off, that could be done over what is to have the name.
func (m *move) do(ctx context.Context, only bool) error {
	if err := m.d.lock(ctx); err != nil {
		return err
	}
	defer m.d.unlock() // nobody publishes it before
	if err := m.swap(ctx, only); err != nil || m.replaced == nil {
		return err
	}
	m.replaced.mu.RLock()
	if stop := m.replaced.cancel; stop != nil && !m.replaced.asking {
		stop(ErrRemoved)
	}
	m.replaced.mu.RUnlock()
	m.d.awaits.Store(m.replaced)
	err := m.replaced.lock(ctx)
	m.d.awaits.Store(nil)
	if err != nil {
		return errors.Join(err, m.back())
	}
	m.replaced.unlock()
	return nil
}

func (m *move) swap(ctx context.Context, only bool) error {
	d, s := m.d, m.d.s
	if d.pending != nil { // nobody knows yet whether its old name has an object of it
		if err := d.settle(ctx); err != nil {
			return err
		}
	}
	s.mu.Lock()
	d.mu.Lock()
	var err error
	m.from, m.since, m.attr, m.conflict = d.name, d.named, d.attr, d.beside
	switch {
	case d.removed || d.gone || d.nameless:
		err = ErrRemoved
	case m.from == m.to:
	case d.base != nil:
		err = ErrPublished
	default:
		s.unnameLocked(d)
		if at, there := s.findLocked(m.to); there {
			m.replaced = s.names[at]
			m.was = m.replaced.outname()
		}
		d.name, d.named, d.attr.Exclusive, d.attr.New, d.beside = m.to, s.o.Now(), only, s.o.New != nil && s.o.New(m.to.Link), false
		s.nameLocked(d)
	}
	d.mu.Unlock()
	s.mu.Unlock()
	if err != nil || m.from == m.to {
		return err
	}
	if err = d.save(false); err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		d.mu.Lock()
		defer d.mu.Unlock()
		m.restoreLocked()
	}
	return err
}

// outnamed is why a draft has no name.
const outnamed = "a later draft has its name: drop it"

// outname takes the name of a draft away, and tells what it was.
func (d *Draft) outname() Info {
	was := d.Info()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.nameless, d.state, d.why = true, Failed, outnamed
	return was
}

// restoreLocked gives both drafts their names again.
func (m *move) restoreLocked() {
	d, s := m.d, m.d.s
	s.unnameLocked(d)
	if r := m.replaced; r != nil {
		r.mu.Lock()
		if r.nameless = false; r.why == outnamed { // else it was published meanwhile
			r.state, r.why, r.since = m.was.State, m.was.Why, m.was.Since
		}
		gone := r.gone || r.removed // the bucket has the name
		r.mu.Unlock()
		if !gone {
			s.nameLocked(r)
		}
	}
	d.name, d.named, d.attr.Exclusive, d.attr.New, d.beside = m.from, m.since, m.attr.Exclusive, m.attr.New, m.conflict
	s.nameLocked(d)
}

// undo gives the names back, if nothing was published and nothing may have been.
func (m *move) undo(ctx context.Context) error {
	if err := m.d.lock(context.WithoutCancel(ctx)); err != nil { // ErrClosed: the next start takes the names as they are
		return err
	}
	defer m.d.unlock()
	return m.back()
}

// back is undo for who has busy. Where the draft keeps its new name, what had that before is removed: it would have it again at the next
// start, and be published over what has come since.
func (m *move) back() error {
	d, s := m.d, m.d.s
	s.mu.Lock()
	d.mu.Lock()
	_, taken := s.findLocked(m.from)
	stays := m.from == m.to || taken || d.pending != nil || d.base != nil || d.removed || d.gone
	if !stays {
		m.restoreLocked()
	}
	d.mu.Unlock()
	s.mu.Unlock()
	if stays {
		return m.drop()
	}
	return d.save(false)
}

// takeBack undoes a move of a draft that may have been published since, and that somebody holds.
func (m *move) takeBack(ctx context.Context, unwrite func(context.Context, hearth.Object) error) error {
	d := m.d
	if err := d.lock(ctx); err != nil {
		return err
	}
	defer d.unlock()
	if m.from == m.to {
		return m.back()
	}
	o := d.unpublish()
	if o == nil {
		return m.back()
	}
	// In the record before the object goes: else the next process would think that the bucket has the draft.
	if err := d.save(false); err != nil {
		return err
	}
	failed := unwrite(ctx, *o)
	if failed == nil {
		d.mu.Lock()
		d.unwritten = nil
		d.mu.Unlock()
	} else { // Clean tries it again; the draft has its old name meanwhile, as the others
		failed = fmt.Errorf("take back %s: %w: it is tried again", o.Key, failed)
	}
	return errors.Join(failed, m.back(), d.save(false))
}

// unpublish makes a draft one that was not published, and returns the object that is to be deleted for that. nil means that it has none.
func (d *Draft) unpublish() *hearth.Object {
	d.mu.Lock()
	defer d.mu.Unlock()
	o := d.base
	if o != nil {
		d.unwritten, d.base, d.published, d.told, d.clean, d.anew = o, nil, nil, nil, 0, false
		d.setLocked(Staged, "")
	}
	return o
}

// end removes what was replaced, and what the origin has of its uploads.
func (m *move) end(ctx context.Context) error {
	if err := m.drop(); err != nil || m.replaced == nil {
		return err
	}
	if err := m.replaced.cleanUp(ctx); err != nil {
		m.d.s.log("replaced draft %s: %v: it is tried again", m.to.Key, err)
	}
	return nil
}

// drop is end without a request.
func (m *move) drop() error {
	old := m.replaced
	if old == nil {
		return nil
	}
	old.s.mu.Lock()
	old.s.removeLocked(old)
	old.s.mu.Unlock()
	return old.vanish()
}
