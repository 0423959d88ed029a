package main

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// This file is what writes are measured with: writers of files, and what they are measured against. The plain
// uploader and the plain putter send objects over kept-alive connections, and no more: they send no checksums, ask
// for nothing before or afterwards, and try nothing again but what a busy server refuses.

// writerProgram is the first argument of this binary as one of them:
//
//	bench writer WORK
//
// It prints what it did, with the seconds from the first open or request to the last close or answer.
const writerProgram = "writer"

// writing is what a writer does.
type writing struct {
	Do string `json:"do"` // file, files; upload, put
	// To is where: the file; the directory of the files; the key of the object; the prefix of the objects.
	To string `json:"to"`
	// As is a temporary name beside To: the file is written there, synced, closed, and renamed.
	As string `json:"as,omitempty"`
	// Sync has the file synced before it is closed.
	Sync bool `json:"sync,omitempty"`
	// From is the file that an uploader reads.
	From string `json:"from,omitempty"`
	// Size of the file in bytes, and Part that of an uploader's parts.
	Size int64 `json:"size,omitempty"`
	Part int64 `json:"part,omitempty"`
	// Dirs of Files files of Small bytes each.
	Dirs  int   `json:"dirs,omitempty"`
	Files int   `json:"files,omitempty"`
	Small int64 `json:"small,omitempty"`
	// Threads are writers, or connections.
	Threads int `json:"threads"`
}

// written is what it did.
type written struct {
	Seconds float64 `json:"seconds"`
	Units   int64   `json:"units"`
	Bytes   int64   `json:"bytes"`
	latencies
}

// set are the small files.
func (w *writing) set() hearthtest.DataSet {
	return hearthtest.DataSet{Name: "W11", Groups: []hearthtest.Group{{Dir: "w11/dir", Dirs: w.Dirs, Files: w.Files, Min: w.Small, Max: w.Small}}}
}

// beWriter is that process; the origin is the environment's.
func beWriter(text string) error {
	var w writing
	if err := json.Unmarshal([]byte(text), &w); err != nil {
		return fmt.Errorf("work: %w", err)
	}
	o := plainOrigin{Bucket: "bench", Connections: w.Threads, Part: w.Part, S3: environment(w.Threads)}
	var data []byte
	if w.Do == "file" {
		data = pattern() // before the clock runs
	}
	work := map[string]func() (sum, error){
		"file":   func() (sum, error) { return w.file(data) },
		"files":  w.files,
		"upload": func() (sum, error) { return o.upload(context.Background(), w.To, w.From) },
		"put":    func() (sum, error) { return o.put(context.Background(), w.To, w.set()) },
	}[w.Do]
	if work == nil {
		return fmt.Errorf("a writer does not %q", w.Do)
	}
	begun := time.Now()
	s, err := work()
	if err != nil {
		return fmt.Errorf("%s: %w", w.Do, err)
	}
	did := written{Seconds: time.Since(begun).Seconds(), Units: s.units, Bytes: s.bytes}
	did.P50us, did.P99us, did.MaxUs = percentiles(s.latency)
	return json.NewEncoder(os.Stdout).Encode(did)
}

// environment is the account of the environment, over so many connections.
func environment(connections int) hearthtest.S3 {
	return hearthtest.S3{Endpoint: os.Getenv("AWS_ENDPOINT_URL"), Region: os.Getenv("AWS_REGION"), Client: plainClient(connections),
		AccessKey: os.Getenv("AWS_ACCESS_KEY_ID"), SecretKey: os.Getenv("AWS_SECRET_ACCESS_KEY")}
}

// patternSize is how many bytes are made: a large file has them over and over, since who has a checkpoint in memory
// need not make it, and all of it would not fit beside the origin's.
const patternSize = 64 << 20

func pattern() []byte {
	p := make([]byte, patternSize)
	hearthtest.Fill(p, "pattern", 0, 0)
	return p
}

// writeSize is how much a writer of a large file gives to one write(2), in bytes.
const writeSize = 1 << 20

// file writes a large file, from open to close, and renames it if it has a temporary name.
func (w *writing) file(data []byte) (s sum, err error) {
	name := w.To
	if w.As != "" {
		name = filepath.Join(filepath.Dir(w.To), w.As)
	}
	fd, err := retry(func() (int, error) {
		return syscall.Open(name, syscall.O_CREAT|syscall.O_WRONLY|syscall.O_TRUNC|syscall.O_CLOEXEC, 0o644)
	})
	if err != nil {
		return s, fmt.Errorf("open %s: %w", name, err)
	}
	for s.bytes < w.Size && err == nil {
		at := s.bytes % patternSize
		var n int
		n, err = retry(func() (int, error) {
			return syscall.Write(fd, data[at:at+min(writeSize, patternSize-at, w.Size-s.bytes)])
		})
		s.bytes += int64(max(n, 0))
	}
	if err == nil && (w.Sync || w.As != "") {
		err = syscall.Fsync(fd)
	}
	if err = errors.Join(err, syscall.Close(fd)); err == nil && w.As != "" {
		err = syscall.Rename(name, w.To)
	}
	s.units = 1
	if err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return s, err
}

// files writes small ones.
func (w *writing) files() (sum, error) {
	return smallOnes(w.set(), w.Threads, func(f hearthtest.File, data []byte) error {
		return create(filepath.Join(w.To, f.Path), data)
	})
}

// create makes a file of some bytes by one write.
func create(name string, data []byte) error {
	fd, err := retry(func() (int, error) {
		return syscall.Open(name, syscall.O_CREAT|syscall.O_WRONLY|syscall.O_TRUNC|syscall.O_CLOEXEC, 0o644)
	})
	if err != nil {
		return fmt.Errorf("create %s: %w", name, err)
	}
	n, err := retry(func() (int, error) { return syscall.Write(fd, data) })
	if err == nil && n < len(data) {
		err = io.ErrShortWrite
	}
	if err = errors.Join(err, syscall.Close(fd)); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// smallOnes gives each file of a set, with its bytes, to as many threads.
func smallOnes(set hearthtest.DataSet, threads int, write func(f hearthtest.File, data []byte) error) (sum, error) {
	var all []hearthtest.File
	var order []int
	for f := range set.Files() {
		order, all = append(order, len(all)), append(all, f)
	}
	return spread(order, threads, func(i int, buf []byte) (int64, error) {
		data := buf[:all[i].Size]
		hearthtest.Fill(data, all[i].Path, 0, 0)
		return all[i].Size, write(all[i], data)
	})
}

// put makes an object of each file of a set below a prefix.
func (o *plainOrigin) put(ctx context.Context, prefix string, set hearthtest.DataSet) (sum, error) {
	return smallOnes(set, o.Connections, func(f hearthtest.File, data []byte) error {
		_, err := o.PutBytes(ctx, o.Bucket, prefix+f.Path, data)
		return err
	})
}

// upload makes one object of a file, in parts.
func (o *plainOrigin) upload(ctx context.Context, key, from string) (s sum, err error) {
	f, err := os.Open(from)
	if err != nil {
		return s, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return s, err
	}
	var begun struct{ UploadId string }
	if _, err := o.send(ctx, sending{http.MethodPost, key, url.Values{"uploads": {""}}, nil, 0}, &begun); err != nil {
		return s, fmt.Errorf("begin: %w", err)
	}
	type one struct {
		PartNumber int
		ETag       string
	}
	parts := make([]one, (info.Size()+o.Part-1)/o.Part)
	group, sends := errgroup.WithContext(ctx)
	group.SetLimit(o.Connections)
	for i := range parts {
		group.Go(func() error {
			at := int64(i) * o.Part
			n := min(o.Part, info.Size()-at)
			query := url.Values{"partNumber": {strconv.Itoa(i + 1)}, "uploadId": {begun.UploadId}}
			header, err := o.send(sends, sending{http.MethodPut, key, query, io.NewSectionReader(f, at, n), n}, nil)
			parts[i] = one{i + 1, header.Get("ETag")}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return s, fmt.Errorf("send a part: %w", err)
	}
	list, err := xml.Marshal(struct {
		XMLName xml.Name `xml:"CompleteMultipartUpload"`
		Part    []one
	}{Part: parts})
	if err != nil {
		return s, err
	}
	_, err = o.send(ctx, sending{http.MethodPost, key, url.Values{"uploadId": {begun.UploadId}}, bytes.NewReader(list), int64(len(list))}, nil)
	if err != nil {
		return s, fmt.Errorf("complete: %w", err)
	}
	return sum{units: 1, bytes: info.Size()}, nil
}

// sending is a request with a body; a nil body is none.
type sending struct {
	method, key string
	query       url.Values
	body        io.Reader
	size        int64
}

// send sends it, and reads its answer, which is XML, into to, unless to is nil.
func (o *plainOrigin) send(ctx context.Context, x sending, to any) (http.Header, error) {
	req, err := o.Request(ctx, x.method, o.Bucket, x.key, x.query)
	if err != nil {
		return nil, err
	}
	if x.size > 0 {
		req.Body, req.ContentLength = io.NopCloser(x.body), x.size
	}
	resp, err := o.S3.Client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return nil, err
	case resp.StatusCode != http.StatusOK || bytes.Contains(text, []byte("<Error>")):
		return nil, fmt.Errorf("%s: %.400s", resp.Status, text)
	case to != nil:
		return resp.Header, xml.Unmarshal(text, to)
	}
	return resp.Header, nil
}
