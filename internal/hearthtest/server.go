package hearthtest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// Server is an S3 server in its own process.
type Server struct {
	// S3 is the server's root account.
	S3
	// Dir holds the buckets as directories and the objects as files, for servers that keep them so
	// (StartS3 does).
	Dir string
	// Command started it. Its output is kept for the error that names it.
	Command *exec.Cmd
	stop    func()
}

// ServerOptions say which server runs, and how. The zero value runs versitygw with random keys on a
// free loopback port.
type ServerOptions struct {
	// Dir is where the data lies. versitygw requires it.
	Dir string
	// Address to listen on. "" means a free port of 127.0.0.1.
	Address string
	// Region of the buckets. "" means us-east-1.
	Region string
	// CertFile and KeyFile make the server speak TLS.
	CertFile, KeyFile string
	// AccessLog is a file to which versitygw writes a line for each request. "" means none.
	AccessLog string
	// VersioningDir is where versitygw keeps versions that are not the latest, of buckets that are told to. "" means that none is.
	VersioningDir string
	// Fake runs gofakes3: flat keys of any kind, no If-Match, in memory.
	Fake bool
	// MinIO runs a single plain MinIO over Dir. It keeps objects in a format of its own.
	MinIO bool
}

// StartS3 runs versitygw until the test ends.
func StartS3(t testing.TB) *Server {
	t.Helper()
	return Start(t, ServerOptions{Dir: t.TempDir()})
}

// StartFakeS3 runs gofakes3 until the test ends.
func StartFakeS3(t testing.TB) *Server {
	t.Helper()
	return Start(t, ServerOptions{Fake: true})
}

// Start runs a server until the test ends. A server that is not installed fails
// the test, except under -short.
func Start(t testing.TB, o ServerOptions) *Server {
	t.Helper()
	s, err := Run(context.Background(), o)
	if errors.Is(err, fs.ErrNotExist) && testing.Short() {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

// Bucket makes a bucket of a name at the server, or fails the test.
func (s *Server) Bucket(t testing.TB, name string) string {
	t.Helper()
	if err := s.CreateBucket(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	return name
}

// Run starts a server and returns when it answers. The server ends with Stop, or with the process
// that called Run, however that ends.
func Run(ctx context.Context, o ServerOptions) (*Server, error) {
	if o.Region == "" {
		o.Region = "us-east-1"
	}
	// Another process may take a free port before the server has it. Then try again with another
	// port.
	var err error
	for range 5 {
		var s *Server
		if s, err = run(ctx, o); err == nil {
			return s, nil
		}
		if o.Address != "" || errors.Is(err, fs.ErrNotExist) || ctx.Err() != nil {
			break
		}
	}
	return nil, err
}

func run(ctx context.Context, o ServerOptions) (*Server, error) {
	address := o.Address
	if address == "" {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		address = l.Addr().String()
		l.Close()
	}
	s := &Server{Dir: o.Dir, S3: S3{Endpoint: "http://" + address, Region: o.Region, AccessKey: "HT" + random(9), SecretKey: random(20)}}
	s.Client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}
	if o.CertFile != "" {
		s.Endpoint = "https://" + address
	}
	name, args := "versitygw", []string{"--port", address, "--region", o.Region, "--keep-alive", "--quiet"}
	if o.AccessLog != "" {
		args = append(args, "--access-log", o.AccessLog)
	}
	switch {
	case o.Fake:
		name, args = "gofakes3", []string{"-host", address, "-backend", "memory", "-quiet"}
		s.AccessKey, s.SecretKey = "fake", "fake" // it looks at neither
	case o.MinIO:
		name, args = "minio", []string{"server", "--quiet", "--address", address, o.Dir}
	case o.CertFile != "":
		args = append(args, "--cert", o.CertFile, "--key", o.KeyFile, "posix", o.Dir)
	case o.VersioningDir != "":
		args = append(args, "posix", "--versioning-dir", o.VersioningDir, o.Dir)
	default:
		args = append(args, "posix", o.Dir)
	}
	tool, err := Tool(name)
	if err != nil {
		return nil, err
	}
	s.Command = exec.Command(tool, args...)
	s.Command.Env = append(os.Environ(), "ROOT_ACCESS_KEY="+s.AccessKey, "ROOT_SECRET_KEY="+s.SecretKey,
		"MINIO_ROOT_USER="+s.AccessKey, "MINIO_ROOT_PASSWORD="+s.SecretKey, "MINIO_REGION="+s.Region, "MINIO_BROWSER=off", "MINIO_UPDATE=off")
	return s, s.start(ctx, address)
}

func (s *Server) start(ctx context.Context, address string) error {
	exited, output, err := StartChild(s.Command)
	if err != nil {
		return err
	}
	s.stop = sync.OnceFunc(func() {
		_ = s.Command.Process.Kill() // it may have ended by itself
		<-exited
		s.Client.CloseIdleConnections()
	})
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		if conn, err := net.Dial("tcp", address); err == nil {
			return conn.Close()
		}
		select {
		case <-exited:
			return fmt.Errorf("start %s: it ended: %s", s.Command.Path, output())
		case <-ctx.Done():
			s.stop()
			return fmt.Errorf("start %s: %w: %s", s.Command.Path, ctx.Err(), output())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// Stop ends the server and waits for its end.
func (s *Server) Stop() { s.stop() }

// Tool finds a test tool in $HEARTH_TOOLS, in .tools/bin beside the nearest go.mod upwards, or in
// PATH. If there is none, the error is fs.ErrNotExist.
func Tool(name string) (string, error) {
	if dir := os.Getenv("HEARTH_TOOLS"); dir != "" {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	dir, err := os.Getwd()
	for err == nil {
		if _, stat := os.Stat(filepath.Join(dir, "go.mod")); stat == nil {
			if path, err := exec.LookPath(filepath.Join(dir, ".tools/bin", name)); err == nil {
				return path, nil
			}
			break
		}
		if dir == filepath.Dir(dir) {
			break
		}
		dir = filepath.Dir(dir)
	}
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	return "", fmt.Errorf("find the test tool %s (make setup installs it): %w", name, fs.ErrNotExist)
}

func random(n int) string {
	p := make([]byte, n)
	rand.Read(p) // never fails
	return hex.EncodeToString(p)
}
