package hearth

import (
	"context"
	"errors"
	"io"
	"time"
)

// Upload says how an object is to be written.
type Upload struct {
	Key  string
	Size int64 // in bytes; of all parts together, if it is written in parts

	// IfMatch is the ETag, without quotes, of the object that may be replaced. "" means any, and none.
	IfMatch string
	// IfNone refuses to replace any object.
	IfNone bool
	// Draft names the file that is uploaded, in the object's metadata (x-amz-meta-hearth-draft): so that after a lost answer a
	// HEAD tells whether it was written. "" means that none is named.
	Draft string
	// Again says that an earlier process may have sent the same Copy: an object that is known to be that copy is one.
	Again bool
	// Copies says that some parts are to be made by CopyPart: then all parts are verified by MD5 where an
	// origin cannot mix copies with parts that have another checksum (MinIO).
	Copies bool
}

// Part is a part of an object that is written in parts.
type Part struct {
	Number   int // from 1
	Size     int64
	ETag     string // without quotes
	Checksum string // CRC64NVME or CRC32C in base64, as the origin answered; "" where it knows none
}

// Begun is an upload that was begun.
type Begun struct {
	ID string
	At time.Time // by the origin's clock
}

// Uploader writes whole objects at an origin. Each object is verified by a checksum that the origin compares. An error is
// ErrConflict when a condition of the Upload failed, ErrUnanswered when nobody knows whether the origin has done it, and
// fs.ErrPermission, syscall.ENOSPC, syscall.EDQUOT or syscall.EFBIG where the origin says so. After any error but
// ErrUnanswered nothing was written. Put, Complete and Copy have asked what the key has before they say ErrUnanswered.
type Uploader interface {
	// Put writes an object of u.Size bytes. It reads body twice or more, and never after it has returned. The Object's ModTime
	// is about that of the origin.
	Put(ctx context.Context, u *Upload, body io.ReaderAt) (Object, error)
	// PartSize is the size of all parts but the last of an object of that many bytes: at least the configured one, and as
	// large as 10,000 parts need. An object of at most one part is better written by Put.
	PartSize(size int64) int64
	// Begin begins an object in parts, and returns the upload's id.
	Begin(ctx context.Context, u *Upload) (id string, err error)
	// PutPart writes a part of size bytes. A part of the same number is replaced. The error is fs.ErrNotExist where there is no
	// such upload, as of CopyPart and Complete.
	PutPart(ctx context.Context, u *Upload, id string, number int, body io.ReaderAt, size int64) (Part, error)
	// CopyPart makes a part of a range of an object of the same bucket, if it still has that version (else ErrStale).
	CopyPart(ctx context.Context, u *Upload, id string, number int, from *Object, off, n int64) (Part, error)
	// Parts lists what an upload has. The error is fs.ErrNotExist where there is no such upload.
	Parts(ctx context.Context, u *Upload, id string) ([]Part, error)
	// Complete makes the object of parts, whose numbers ascend and whose sizes are u.Size together.
	Complete(ctx context.Context, u *Upload, id string, parts []Part) (Object, error)
	// Copy makes an object of another one of the same bucket, if that still has its version (else ErrStale). What belongs to the
	// object besides its bytes (metadata, content type) goes with it. u has the new key, the size and the conditions of the
	// new key; u.Draft is not used. It is confirmed: the new object was asked for, and has the size and the ETag that
	// the copy answered. ErrUnanswered as for Put.
	Copy(ctx context.Context, u *Upload, from *Object) (Object, error)
	// Abort removes an upload and its parts. That it is gone already is no error.
	Abort(ctx context.Context, u *Upload, id string) error
	// Uploads lists the uploads of a key that were begun and not ended, whoever began them.
	Uploads(ctx context.Context, key string) ([]Begun, error)
	// Written asks after ErrUnanswered whether the object of the key is the one of u.Draft. It is the object, or ErrConflict if
	// it is another one or none.
	Written(ctx context.Context, u *Upload) (Object, error)
	// Delete removes a key, if it still has that ETag. etag "" removes any. That there is none is no error.
	Delete(ctx context.Context, key, etag string) error
}

var (
	// ErrConflict means that an object was not written, since its key has another one than was expected.
	ErrConflict = errors.New("the object was changed by somebody else")
	// ErrUnanswered means that a write was sent and no answer came: it may have been done, or may still be.
	ErrUnanswered = errors.New("the origin has not answered the write")
)
