package hearthtest

import (
	"bytes"
	"context"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/minio/minio-go/v7/pkg/s3utils"
	"github.com/minio/minio-go/v7/pkg/signer"
	"golang.org/x/sync/errgroup"
)

// S3 is an account at an S3 server, for changing data there as a user would. Keys are sent byte for
// byte, in path style.
type S3 struct {
	// Endpoint is the server's URL, "http://127.0.0.1:7070".
	Endpoint string
	// Region that requests are signed for.
	Region string
	// AccessKey and SecretKey sign the requests.
	AccessKey, SecretKey string
	// Client sends the requests. nil means http.DefaultClient. Its pool of idle connections bounds
	// what a load reuses.
	Client *http.Client `json:"-"` // a bench hands the account to another process
}

// Env returns the variables under which any S3 program uses this account.
func (s *S3) Env() []string {
	return []string{
		"AWS_ACCESS_KEY_ID=" + s.AccessKey, "AWS_SECRET_ACCESS_KEY=" + s.SecretKey,
		"AWS_REGION=" + s.Region, "AWS_DEFAULT_REGION=" + s.Region, "AWS_ENDPOINT_URL=" + s.Endpoint,
		"AWS_EC2_METADATA_DISABLED=true", "AWS_CONFIG_FILE=/dev/null", "AWS_SHARED_CREDENTIALS_FILE=/dev/null",
	}
}

// CreateBucket makes a bucket. If there is one of that name, it returns the server's error.
func (s *S3) CreateBucket(ctx context.Context, bucket string) error {
	_, err := s.do(ctx, upload{method: http.MethodPut, bucket: bucket})
	return err
}

// Put stores size bytes of body as one object and returns its ETag.
func (s *S3) Put(ctx context.Context, bucket, key string, body io.ReadSeeker, size int64) (etag string, err error) {
	header, err := s.do(ctx, upload{http.MethodPut, bucket, key, body, size})
	return strings.Trim(header.Get("ETag"), `"`), err
}

// PutBytes stores data as one object and returns its ETag.
func (s *S3) PutBytes(ctx context.Context, bucket, key string, data []byte) (etag string, err error) {
	return s.Put(ctx, bucket, key, bytes.NewReader(data), int64(len(data)))
}

// PutFile stores a version of a file of a data set under prefix.
func (s *S3) PutFile(ctx context.Context, bucket, prefix string, f File, version int) error {
	_, err := s.Put(ctx, bucket, prefix+f.Path, f.Reader(version), f.Size)
	return err
}

// Delete removes an object.
func (s *S3) Delete(ctx context.Context, bucket, key string) error {
	_, err := s.do(ctx, upload{method: http.MethodDelete, bucket: bucket, key: key})
	return err
}

// LoadOptions say how a data set is uploaded.
type LoadOptions struct {
	// Prefix stands in front of every file's path in its key.
	Prefix string
	// Version of the bytes.
	Version int
	// Connections at once. 0 means 16.
	Connections int
	// Progress is called after each file with the sums so far, from many goroutines. It may be nil.
	Progress func(files, bytes int64)
}

// Load uploads the files of a data set in parallel.
func (s *S3) Load(ctx context.Context, bucket string, set DataSet, o LoadOptions) error {
	group, ctx := errgroup.WithContext(ctx)
	if o.Connections == 0 {
		o.Connections = 16
	}
	client := *s
	if client.Client == nil {
		transport := &http.Transport{MaxIdleConnsPerHost: o.Connections, WriteBufferSize: 64 << 10}
		defer transport.CloseIdleConnections()
		client.Client = &http.Client{Transport: transport}
	}
	group.SetLimit(o.Connections)
	var files, bytes atomic.Int64
	for f := range set.Files() {
		if ctx.Err() != nil {
			break
		}
		group.Go(func() error {
			if err := client.PutFile(ctx, bucket, o.Prefix, f, o.Version); err != nil {
				return err
			}
			n, b := files.Add(1), bytes.Add(f.Size)
			if o.Progress != nil {
				o.Progress(n, b)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("load %s into %s: %w", set.Name, bucket, err)
	}
	return nil
}

// upload is one request that makes a change.
type upload struct {
	method, bucket, key string
	body                io.ReadSeeker
	size                int64
}

// do sends one signed request. While the server is busy it sends it again after 100 ms, at most ten
// times.
func (s *S3) do(ctx context.Context, u upload) (http.Header, error) {
	for tries := 1; ; tries++ {
		header, again, err := s.try(ctx, u)
		if err == nil {
			return header, nil
		}
		if !again || tries == 10 {
			return nil, fmt.Errorf("%s %s/%s: %w", u.method, u.bucket, u.key, err)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// Request is a signed request for an object, or for the bucket if key is "". A body and more
// headers may be added.
func (s *S3) Request(ctx context.Context, method, bucket, key string, query url.Values) (*http.Request, error) {
	at, err := url.Parse(s.Endpoint)
	if err != nil {
		return nil, err
	}
	at.Path = "/" + bucket
	if key != "" {
		at.Path += "/" + key
	}
	at.RawPath = s3utils.EncodePath(at.Path)
	at.RawQuery = query.Encode()
	req := &http.Request{Method: method, URL: at, Host: at.Host, Header: http.Header{"X-Amz-Content-Sha256": {"UNSIGNED-PAYLOAD"}}}
	return signer.SignV4(*req.WithContext(ctx), s.AccessKey, s.SecretKey, "", s.Region), nil
}

// try makes one attempt. again says whether another attempt may help.
func (s *S3) try(ctx context.Context, u upload) (header http.Header, again bool, err error) {
	req, err := s.Request(ctx, u.method, u.bucket, u.key, nil)
	if err != nil {
		return nil, false, err
	}
	if u.size > 0 {
		if _, err := u.body.Seek(0, io.SeekStart); err != nil {
			return nil, false, err
		}
		req.Body, req.ContentLength = io.NopCloser(u.body), u.size
	}
	client := s.Client
	if client == nil {
		client = http.DefaultClient
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, true, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if resp.StatusCode/100 == 2 || err != nil {
		return resp.Header, true, err
	}
	var e struct{ Code, Message string }
	_ = xml.Unmarshal(text, &e) // an empty body has no code; the status stands
	return nil, resp.StatusCode >= 500, fmt.Errorf("%s %s %s", resp.Status, e.Code, e.Message)
}
