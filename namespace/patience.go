package namespace

import (
	"context"
	"sync"
	"time"
)

// patiently asks for the file at once, and lets the listing tell of directories. All nodes ask the
// owner of a cold directory for its names at once, and a LIST of one key for each name would be many
// times the LISTs of its pages.
//
// A file that HEAD finds waits for the first page, for besideWait at most. If a later page brings a
// directory of the same name, that is seen then. A name that HEAD does not find gets a LIST of its own
// if the first page does not have it, or is slow. So there is at most one such LIST for each directory,
// and none for a file.
func (q *inquiry) patiently(ctx context.Context, gate <-chan struct{}) error {
	l := q.listBeside(ctx, gate)
	if l == nil { // it was listed lately, and another node needs a newer answer
		return q.fileFirst(ctx)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	heads, lists := make(chan answer, 1), make(chan answer, 1)
	asked := time.Now()
	wg.Go(func() { heads <- q.askHead(ctx) })
	head, passed := q.answerOr(l, heads)
	if passed {
		return nil
	}
	failed := q.note(head)
	grace := max(briefListing, time.Since(asked)) // an origin that takes long for a name takes as long for a page
	switch {
	case head.found:
		grace = besideWait
	case failed != nil:
		grace = briefListing
	}
	if q.firstPage(ctx, l, grace) || head.found {
		return nil
	}
	if failed != nil && l.Err() != nil {
		return failed // a third request of an origin that fails two tells nothing new
	}
	wg.Go(func() { lists <- q.askList(ctx) })
	list, passed := q.answerOr(l, lists)
	if passed {
		return nil
	}
	if err := q.note(list); err != nil {
		failed = err
	}
	if q.dir.found {
		return nil
	}
	return failed
}

// passed reports whether the listing has found out what the segment stands for. If the listing began no
// earlier than the question, it forgets the origin's answers so far: what the listing read is newer,
// and stands in the database.
func (q *inquiry) passed(l *listing) bool {
	if !l.Passed(q.segment+"/") || l.age != q.t.db.Generation() || !l.believed() {
		return false
	}
	if l.began >= q.began {
		q.file, q.dir = finding{}, finding{}
	}
	return true
}

// answerOr waits for an answer, or until the listing has passed the segment.
func (q *inquiry) answerOr(l *listing, answers <-chan answer) (a answer, passed bool) {
	for {
		_, _, _, moved := l.Snapshot()
		if q.passed(l) {
			return answer{}, true
		}
		select {
		case a = <-answers:
			return a, false
		case <-moved:
		}
	}
}

// firstPage waits for the listing's first page, or its end, and reports whether the listing has passed
// the segment.
func (q *inquiry) firstPage(ctx context.Context, l *listing, most time.Duration) (passed bool) {
	late := time.After(most)
	for {
		_, any, ended, moved := l.Snapshot()
		if any || ended {
			return q.passed(l)
		}
		select {
		case <-moved:
		case <-late:
			return false
		case <-ctx.Done():
			return false
		}
	}
}
