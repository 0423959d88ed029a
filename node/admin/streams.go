package admin

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"
)

// Fail answers with an error, as {"kind", "error"}.
func Fail(w http.ResponseWriter, err error) {
	e := &Error{Kind: KindOf(err), Message: err.Error()}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(HTTPStatus(e.Kind))
	_ = json.NewEncoder(w).Encode(e) // an error means that the client went away
}

// ServeList streams one Entry a line. It ends with {"end":true} or an error, so that a listing that broke off
// is never taken for a short one.
func ServeList(w http.ResponseWriter, r *http.Request, list func(ctx context.Context, path string, recursive bool, each func(Entry) error) (hidden int64, err error)) {
	recursive, _ := strconv.ParseBool(r.FormValue("recursive"))
	e := json.NewEncoder(w)
	sent := false
	flushed := time.Now()
	hidden, err := list(r.Context(), r.FormValue("path"), recursive, func(entry Entry) error {
		sent = true
		if f, ok := w.(http.Flusher); ok && time.Since(flushed) > 100*time.Millisecond {
			f.Flush()
			flushed = time.Now()
		}
		return e.Encode(entry)
	})
	switch {
	case err != nil && !sent:
		Fail(w, err)
	case err != nil:
		_ = e.Encode(&Error{Kind: KindOf(err), Message: err.Error()})
	default:
		_ = e.Encode(listEnd{End: true, Hidden: hidden})
	}
}

// Span is a range of a file's bytes. A negative N means to the end.
type Span struct{ Off, N int64 }

// ServeCat streams a file's bytes. If an error breaks them off, HTTP trailers tell it.
func ServeCat(w http.ResponseWriter, r *http.Request, cat func(ctx context.Context, path string, of Span, to io.Writer) error) {
	off, err := strconv.ParseInt(r.FormValue("off"), 10, 64)
	n, err2 := strconv.ParseInt(r.FormValue("n"), 10, 64)
	if errors.Join(err, err2) != nil || off < 0 {
		Fail(w, &Error{Kind: KindUsage, Message: "cat: off and n are numbers of bytes"})
		return
	}
	w.Header().Set("Trailer", errorTrailer+", "+kindTrailer)
	out := &counted{Writer: w}
	if err := cat(r.Context(), r.FormValue("path"), Span{off, n}, out); err != nil {
		if out.N == 0 {
			w.Header().Del("Trailer")
			Fail(w, err)
			return
		}
		w.Header().Set(errorTrailer, err.Error())
		w.Header().Set(kindTrailer, string(KindOf(err)))
	}
}
