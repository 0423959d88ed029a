package origin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"

	"github.com/minio/minio-go/v7"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/origin/sign"
)

var _ hearth.Uploader = (*S3)(nil)

const (
	draftHeader = "X-Amz-Meta-Hearth-Draft"
	versionID   = "X-Amz-Version-Id"
	// For minio-go, which refuses some names and changes bytes that are not UTF-8. The courier puts in the
	// real ones.
	anyBucket, anyKey = "bucket", "key"
)

// begins are the headers of a request that begins an object.
func (s *S3) begins(u *hearth.Upload) http.Header {
	h, w := http.Header{}, s.out.Write
	for name, value := range map[string]string{draftHeader: u.Draft, "X-Amz-Storage-Class": w.StorageClass,
		"X-Amz-Server-Side-Encryption": w.SSE, "X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id": w.KMSKey} {
		if value != "" {
			h.Set(name, value)
		}
	}
	return h
}

// Put is hearth.Uploader's. Body is read twice: for its checksum, and to be sent.
func (s *S3) Put(ctx context.Context, u *hearth.Upload, body io.ReaderAt) (hearth.Object, error) {
	w := &write{op: "put", key: u.Key, upload: u, asks: s.asking(u), names: true, header: s.begins(u)}
	if err := s.condition(ctx, w); err != nil {
		return hearth.Object{}, err
	}
	return s.put(ctx, w, u, body)
}

func (s *S3) put(ctx context.Context, w *write, u *hearth.Upload, body io.ReaderAt) (o hearth.Object, err error) {
	err = s.do(ctx, w, func(ctx context.Context, a *attempt) (err error) {
		w.sum = s.sumFor(u)
		if err = a.sumOf(w.sum, body, u.Size); err != nil {
			return err
		}
		s.out.counts.puts.Add(1)
		info, err := s.out.core.PutObject(ctx, anyBucket, anyKey, a.pack(body, u.Size), u.Size, "", "", minio.PutObjectOptions{DisableContentSha256: true})
		if err != nil {
			return err
		}
		s.learn(w.sum, a.header)
		w.made = a.header.Get(versionID)
		o = s.made(u, info.ETag, a.header)
		return nil
	})
	return s.whole(ctx, w, o, err)
}

// made is the Object of an answer. Its time is the answer's, which a HEAD may tell otherwise by
// some seconds.
func (s *S3) made(u *hearth.Upload, etag string, h http.Header) hearth.Object {
	now, _ := http.ParseTime(h.Get("Date")) // a zero time is none
	return s.object(u.Key, bareETag(etag), u.Size, now)
}

// whole is the object of a write that ended so.
func (s *S3) whole(ctx context.Context, w *write, o hearth.Object, err error) (hearth.Object, error) {
	switch {
	case err != nil:
		return hearth.Object{}, err
	case w.found != nil:
		return *w.found, nil
	case o.ETag == "": // some servers do not say it
		return s.Head(ctx, w.key)
	}
	return o, nil
}

// Begin is hearth.Uploader's.
func (s *S3) Begin(ctx context.Context, u *hearth.Upload) (id string, err error) {
	return s.begin(ctx, u, s.begins(u))
}

func (s *S3) begin(ctx context.Context, u *hearth.Upload, header http.Header) (id string, err error) {
	w := &write{op: "begin", key: u.Key, header: header, names: true}
	err = s.do(ctx, w, func(ctx context.Context, a *attempt) (err error) {
		w.sum = s.sumFor(u)
		w.header.Del("X-Amz-Checksum-Algorithm")
		w.header.Del("X-Amz-Checksum-Type")
		switch w.sum.kind() {
		case minio.ChecksumCRC64NVME:
			w.header.Set("X-Amz-Checksum-Algorithm", "CRC64NVME")
			w.header.Set("X-Amz-Checksum-Type", "FULL_OBJECT")
		case minio.ChecksumCRC32C:
			w.header.Set("X-Amz-Checksum-Algorithm", "CRC32C")
		}
		id, err = s.out.core.NewMultipartUpload(ctx, anyBucket, anyKey, minio.PutObjectOptions{})
		if err == nil && id == "" {
			err = errors.New("no UploadId")
		}
		return err
	})
	return id, err
}

// PutPart is hearth.Uploader's. The error is fs.ErrNotExist where there is no such upload.
func (s *S3) PutPart(ctx context.Context, u *hearth.Upload, id string, number int, body io.ReaderAt, size int64) (hearth.Part, error) {
	part := hearth.Part{Number: number, Size: size}
	w := &write{op: "part", key: u.Key, header: http.Header{}, again: true}
	err := s.do(ctx, w, func(ctx context.Context, a *attempt) (err error) {
		w.sum = s.sumFor(u)
		if err = a.sumOf(w.sum, body, size); err != nil {
			return err
		}
		s.out.counts.parts.Add(1)
		got, err := s.out.core.PutObjectPart(ctx, anyBucket, anyKey, id, number, a.pack(body, size), size, minio.PutObjectPartOptions{DisableContentSha256: true})
		if err == nil && got.ETag == "" {
			err = errors.New("a part without an ETag")
		}
		if err == nil {
			part.ETag, part.Checksum = bareETag(got.ETag), s.learn(w.sum, a.header)
		}
		return err
	})
	return part, err
}

// copies are the headers that name what is copied.
func (s *S3) copies(from *hearth.Object) http.Header {
	return http.Header{"X-Amz-Copy-Source": {sign.Encode(s.bucket+"/"+from.Key, true)}, "X-Amz-Copy-Source-If-Match": {`"` + from.ETag + `"`}}
}

// CopyPart is hearth.Uploader's.
func (s *S3) CopyPart(ctx context.Context, u *hearth.Upload, id string, number int, from *hearth.Object, off, n int64) (hearth.Part, error) {
	part := hearth.Part{Number: number, Size: n}
	w := &write{op: "copy", key: u.Key, again: true, header: s.copies(from)}
	err := s.do(ctx, w, func(ctx context.Context, a *attempt) error {
		s.out.counts.copies.Add(1)
		got, err := s.out.core.CopyObjectPart(ctx, anyBucket, anyKey, anyBucket, anyKey, id, number, off, n, nil)
		if err == nil && got.ETag == "" {
			err = errors.New("a part without an ETag")
		}
		if err == nil {
			part.ETag, part.Checksum = bareETag(got.ETag), cmp.Or(got.ChecksumCRC64NVME, got.ChecksumCRC32C)
		}
		return err
	})
	return part, err
}

// Parts is hearth.Uploader's.
func (s *S3) Parts(ctx context.Context, u *hearth.Upload, id string) (parts []hearth.Part, err error) {
	for after := 0; ; {
		var page minio.ListObjectPartsResult
		w := &write{op: "parts", key: u.Key, again: true}
		err := s.do(ctx, w, func(ctx context.Context, a *attempt) (err error) {
			page, err = s.out.core.ListObjectParts(ctx, anyBucket, anyKey, id, after, 1000)
			return err
		})
		if err != nil {
			return nil, err
		}
		for _, p := range page.ObjectParts {
			parts = append(parts, hearth.Part{Number: p.PartNumber, Size: p.Size, ETag: bareETag(p.ETag), Checksum: cmp.Or(p.ChecksumCRC64NVME, p.ChecksumCRC32C)})
		}
		if !page.IsTruncated {
			return parts, nil
		}
		if page.NextPartNumberMarker <= after {
			return nil, s.wrap("parts", u.Key, fmt.Errorf("%w: a page of parts leads to itself", errLied))
		}
		after = page.NextPartNumberMarker
	}
}

// Uploads is hearth.Uploader's.
func (s *S3) Uploads(ctx context.Context, key string) (all []hearth.Begun, err error) {
	for afterKey, afterID := "", ""; ; {
		var page minio.ListMultipartUploadsResult
		err := s.do(ctx, &write{op: "uploads", again: true}, func(ctx context.Context, _ *attempt) (err error) {
			page, err = s.out.core.ListMultipartUploads(ctx, anyBucket, key, afterKey, afterID, "", 1000)
			return err
		})
		if err != nil {
			return nil, err
		}
		for _, u := range page.Uploads {
			if u.Key == key { // not one that only begins so
				all = append(all, hearth.Begun{ID: u.UploadID, At: u.Initiated})
			}
		}
		if !page.IsTruncated || page.NextKeyMarker > key || page.NextKeyMarker == afterKey && page.NextUploadIDMarker == afterID {
			return all, nil
		}
		afterKey, afterID = page.NextKeyMarker, page.NextUploadIDMarker
	}
}

// Complete is hearth.Uploader's. It may be sent more than once: an upload becomes an object once.
func (s *S3) Complete(ctx context.Context, u *hearth.Upload, id string, parts []hearth.Part) (o hearth.Object, err error) {
	w := &write{op: "complete", key: u.Key, upload: u, asks: s.asking(u), names: true, header: http.Header{}}
	list, whole, size := make([]minio.CompletePart, len(parts)), make([]minio.ObjectPart, len(parts)), int64(0)
	for i, p := range parts {
		list[i] = minio.CompletePart{PartNumber: p.Number, ETag: p.ETag}
		if len(p.Checksum) == len("AAAAAAAAAAA=") {
			list[i].ChecksumCRC64NVME = p.Checksum
		} else {
			list[i].ChecksumCRC32C = p.Checksum
		}
		whole[i] = minio.ObjectPart{PartNumber: p.Number, Size: p.Size, ChecksumCRC64NVME: list[i].ChecksumCRC64NVME}
		size += p.Size
	}
	if size != u.Size {
		return o, s.wrap(w.op, u.Key, fmt.Errorf("the parts are %d bytes, and not %d: %w", size, u.Size, fs.ErrInvalid))
	}
	if sum, err := minio.ChecksumCRC64NVME.FullObjectChecksum(whole); err == nil { // else a part has none
		w.header.Set(minio.ChecksumCRC64NVME.Key(), sum.Encoded())
		w.header.Set("X-Amz-Checksum-Type", "FULL_OBJECT")
	}
	if err := s.condition(ctx, w); err != nil {
		return o, err
	}
	w.again = true
	err = s.do(ctx, w, func(ctx context.Context, a *attempt) error {
		info, err := s.out.core.CompleteMultipartUpload(ctx, anyBucket, anyKey, id, list, minio.PutObjectOptions{})
		if err == nil {
			o = s.made(u, info.ETag, a.header)
		}
		return err
	})
	if o, err = s.whole(ctx, w, o, err); err != nil || w.found != nil {
		return o, err
	}
	return s.confirmed(ctx, u, o), nil
}

// confirmed is what a HEAD says of an object that was just made of parts: its time is that of Begin at
// some origins, and a few answer Complete with an ETag that it does not have.
func (s *S3) confirmed(ctx context.Context, u *hearth.Upload, o hearth.Object) hearth.Object {
	now, h, err := s.head(ctx, u.Key)
	if err == nil && (now.ETag == o.ETag || u.Draft != "" && h.Get(draftHeader) == u.Draft) {
		return now
	}
	return o // somebody else was there since, or it cannot be asked
}

// Abort is hearth.Uploader's.
func (s *S3) Abort(ctx context.Context, u *hearth.Upload, id string) error {
	w := &write{op: "abort", key: u.Key, again: true}
	err := s.do(ctx, w, func(ctx context.Context, a *attempt) error {
		return a.done(s.out.core.AbortMultipartUpload(ctx, anyBucket, anyKey, id))
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// done is the error of a request whose answer says nothing but that it was done.
func (a *attempt) done(err error) error {
	if a.header != nil {
		return nil // minio-go wants 204 alone
	}
	return err
}

// Delete is hearth.Uploader's.
func (s *S3) Delete(ctx context.Context, key, etag string) error {
	w := &write{op: "delete", key: key, names: true, header: http.Header{}, again: true}
	if etag != "" {
		able, err := s.WriteAbilities(ctx)
		if err != nil {
			return err
		}
		if able.IfMatchDelete {
			w.header.Set("If-Match", `"`+etag+`"`)
		} else {
			w.check = func(ctx context.Context) error { return s.still(ctx, key, etag) }
		}
	}
	err := s.remove(ctx, w)
	var e *Error
	if errors.As(err, &e) && e.Status == http.StatusPreconditionFailed { // it may be gone
		if _, asked := s.Head(ctx, key); errors.Is(asked, fs.ErrNotExist) {
			return nil
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (s *S3) remove(ctx context.Context, w *write) error {
	return s.do(ctx, w, func(ctx context.Context, a *attempt) error {
		err := a.done(s.out.core.RemoveObject(ctx, anyBucket, anyKey, minio.RemoveObjectOptions{VersionID: w.version}))
		if err == nil && w.version == "" {
			w.made = a.header.Get(versionID)
		}
		return err
	})
}
