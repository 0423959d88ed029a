package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hearthfs/hearth/node"
)

// reach finds who answers for a PATH or URL: the running node for a path of its
// tree, for a URL too if a link covers it; else a node of this process, in RAM,
// without mount, disk and socket, for as long as the verb runs.
func (c *common) reach(ctx context.Context, cmd *cobra.Command, target string) (*node.Client, func(), error) {
	s, err := load(cmd)
	if err != nil {
		return nil, nil, err
	}
	client, err := c.client(s)
	if err != nil {
		return nil, nil, err
	}
	if !isURL(target) {
		return client, client.Close, nil
	}
	o := s.root.Origin
	o.URL = target
	if status, err := client.Status(ctx); err == nil && status.Covers(o.WithEnvironment()) {
		return client, client.Close, nil
	}
	client.Close()
	return c.inProcess(ctx, s, target)
}

func (c *common) inProcess(ctx context.Context, s *settings, url string) (*node.Client, func(), error) {
	root := s.root
	root.Path, root.Origin.URL = "/", linkURL(url)
	short := node.Config{
		Links: []node.Link{root}, Version: version(),
		Cache: node.Cache{RAM: s.node.Cache.RAM, NoDisk: true},
		Admin: node.Admin{Socket: "-", Listen: "-"},
		Log:   slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
	}
	n, err := node.New(ctx, short)
	if exitCode(err) == exitNotFound {
		// A listing may hide what the very key would find.
		short.Links[0].Origin.URL = bucketURL(url)
		n, err = node.New(ctx, short)
	}
	if err != nil {
		return nil, nil, err
	}
	client := n.Client()
	return client, func() {
		client.Close()
		_ = n.Close()
	}, nil
}

// isURL tells a URL from a path, which may hold "://" as well.
func isURL(s string) bool { return !strings.HasPrefix(s, "/") && strings.Contains(s, "://") }

// linkURL is what a short node links: what lies around the last part of the
// URL, since that may name an object as well as a prefix.
func linkURL(url string) string {
	scheme, rest, _ := strings.Cut(url, "://")
	bucket, key, _ := strings.Cut(rest, "/")
	if strings.HasSuffix(key, "/") || key == "" {
		return url
	}
	return scheme + "://" + bucket + "/" + key[:strings.LastIndexByte(key, '/')+1]
}

// bucketURL is the URL of all that a bucket holds; a directory is its own.
func bucketURL(url string) string {
	scheme, rest, _ := strings.Cut(url, "://")
	if bucket, _, _ := strings.Cut(rest, "/"); bucket != "" {
		return scheme + "://" + bucket
	}
	return linkURL(url)
}

// out is where results go; a verb's tests replace it.
func out(cmd *cobra.Command) io.Writer {
	if f, ok := cmd.OutOrStdout().(*os.File); ok {
		return stdout{f}
	}
	return cmd.OutOrStdout()
}

// stdout is standard output, whose errors say so.
type stdout struct{ *os.File }

func (s stdout) Write(p []byte) (int, error) { return s.wrote(s.File.Write(p)) }

// WriteString is Write without a copy.
func (s stdout) WriteString(text string) (int, error) { return s.wrote(s.File.WriteString(text)) }

func (stdout) wrote(n int, err error) (int, error) {
	var in *fs.PathError
	if errors.As(err, &in) {
		err = in.Err
	}
	if err != nil {
		err = fmt.Errorf("standard output cannot be written: %w", err)
	}
	return n, err
}
