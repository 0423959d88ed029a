package namespace

// keep writes down what was found out.
func (q *inquiry) keep() error {
	t := q.t
	if !q.file.known && !q.dir.known {
		return nil // the listing knows
	}
	return t.change(q.d, func(e *edit) error {
		if !t.asks.newest.Newest(absence{Dir: q.d.hash, Sort: q.segment}, q.asked) {
			return nil // others know better
		}
		if q.copied && q.d.listedAt(t, q.segment+"/") > q.began {
			return nil // the listing knows better
		}
		if q.copied {
			e.told = q.began
		} else {
			e.asked = q.began
		}
		var err error
		switch {
		case q.dir.found:
			err = e.setDir(q.segment+"/", q.began)
		case q.dir.known:
			var stays int64
			if stays, err = e.dropAsOf(q.segment+"/", q.began); stays == 0 {
				t.neg.Add(absence{Dir: q.d.hash, Sort: q.segment + "/"}, q.began)
			}
		}
		if err != nil {
			return err
		}
		switch {
		case q.file.found:
			if !q.copied {
				q.d.headed.Store(q.began)
			}
			if err = e.setFile(q.segment, &q.object, q.began); err == nil {
				err = e.setBesideOf(q.segment)
			}
		case q.file.known:
			err = e.drop(q.segment)
			t.neg.Add(absence{Dir: q.d.hash, Sort: q.segment}, q.began)
		}
		return err
	})
}
