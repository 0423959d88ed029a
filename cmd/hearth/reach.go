package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
	"github.com/hearthfs/hearth/cmd/hearth/settings"
	"github.com/hearthfs/hearth/node"
	"github.com/hearthfs/hearth/node/admin"
)

// reach finds the node that answers for a PATH or URL. The running node answers for a path of its
// tree, and for a URL that one of its links covers. For any other URL a node starts in this
// process, for as long as the verb runs: in RAM, without mount, disk and socket.
func reach(ctx context.Context, c *cli.Common, cmd *cobra.Command, target string) (*admin.Client, func(), error) {
	s, err := settings.Load(cmd)
	if err != nil {
		return nil, nil, err
	}
	client, err := dial(c, s)
	if err != nil {
		return nil, nil, err
	}
	if !isURL(target) {
		return client, client.Close, nil
	}
	o := s.Root.Origin
	o.URL = target
	if status, err := client.Status(ctx); err == nil && status.Covers(o.WithEnvironment()) {
		return client, client.Close, nil
	}
	client.Close()
	return inProcess(ctx, c, s, target)
}

func inProcess(ctx context.Context, c *cli.Common, s *settings.Settings, url string) (*admin.Client, func(), error) {
	root := s.Root
	root.Path, root.Origin.URL = "/", linkURL(url)
	short := node.Config{
		Links: []node.Link{root}, Version: version(),
		Cache: node.Cache{RAM: s.Cache.RAM, NoDisk: true},
		Admin: node.Admin{Socket: "-", Listen: "-"},
		Log:   slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
	}
	defer c.Waiting(os.Stderr, origins(url))()
	n, err := node.New(ctx, short)
	if cli.ExitCode(err) == cli.ExitNotFound {
		// The prefix may list nothing although a request for the key itself would find it.
		short.Links[0].Origin.URL = bucketURL(url)
		n, err = node.New(ctx, short)
	}
	if err != nil {
		return nil, nil, err
	}
	client := n.Client()
	client.Waits = func() func() { return c.Waiting(os.Stderr, origins(url)) }
	return client, func() {
		client.Close()
		_ = n.Close()
	}, nil
}

// askNode runs do with the node of this machine, or the one that --node names.
func askNode(c *cli.Common, cmd *cobra.Command, do func(context.Context, *admin.Client) error) error {
	if err := c.CheckOutput(); err != nil {
		return err
	}
	s, err := settings.Load(cmd)
	if err != nil {
		return err
	}
	n, err := dial(c, s)
	if err != nil {
		return err
	}
	defer n.Close()
	ctx, stop := c.Context(cmd.Context())
	defer stop()
	return do(ctx, n)
}

// addData gives cmd the flags of the verbs that read the tree.
func addData(cmd *cobra.Command) *cli.Common {
	c := cli.AddCommon(cmd)
	settings.AddFlags(cmd, "origin")
	return c
}

// here is the current directory, if it lies below a mount of the node.
func here(ctx context.Context, n *admin.Client) *place {
	return currentPlace(func() (dirs []string) {
		if s, err := n.Status(ctx); err == nil { // otherwise the request itself fails, too
			for _, m := range s.Mounts {
				if !m.Detached && m.At == "" {
					dirs = append(dirs, m.Dir)
				}
			}
		}
		return dirs
	})
}

// withNode runs do with the node that answers for target, and with the path or URL that target is
// there.
func withNode(c *cli.Common, cmd *cobra.Command, target string, do func(ctx context.Context, n *admin.Client, asked string) error) error {
	if err := c.CheckOutput(); err != nil {
		return err
	}
	ctx, stop := c.Context(cmd.Context())
	defer stop()
	n, done, err := reach(ctx, c, cmd, target)
	if err != nil {
		return cli.Because(ctx, err)
	}
	defer done()
	at := here(ctx, n)
	return cli.HintUp(cli.Because(ctx, at.Said(do(ctx, n, at.Absolute(target)))))
}

// isURL tells a URL from a path, which may contain "://", too.
func isURL(s string) bool { return !strings.HasPrefix(s, "/") && strings.Contains(s, "://") }

// linkURL is the URL that a short-lived node links: without its last part, which may name an object
// as well as a prefix.
func linkURL(url string) string {
	scheme, rest, _ := strings.Cut(url, "://")
	bucket, key, _ := strings.Cut(rest, "/")
	if strings.HasSuffix(key, "/") || key == "" {
		return url
	}
	return scheme + "://" + bucket + "/" + key[:strings.LastIndexByte(key, '/')+1]
}

// bucketURL is the URL of the whole bucket. A local directory has no bucket, and stays.
func bucketURL(url string) string {
	scheme, rest, _ := strings.Cut(url, "://")
	if bucket, _, _ := strings.Cut(rest, "/"); bucket != "" {
		return scheme + "://" + bucket
	}
	return linkURL(url)
}

// dial returns a client of the node that --node, the configuration or the default names.
func dial(c *cli.Common, s *settings.Settings) (*admin.Client, error) {
	address := c.Node
	if address == "" {
		address = os.Getenv("HEARTH_NODE")
	}
	if address == "" {
		address = s.Admin.Socket
	}
	n, err := admin.Dial(address)
	if err != nil {
		return nil, err
	}
	n.Waits = func() func() { return c.Waiting(os.Stderr, nodeAndOrigins(*n)) }
	return n, nil
}

// origins says what a verb waits for that asks the origins itself.
func origins(urls ...string) func(context.Context) string {
	return func(context.Context) string {
		switch len(urls) {
		case 0:
			return ""
		case 1:
			return "the origin " + cli.QuoteName(urls[0])
		}
		return fmt.Sprintf("the origins, %s and %d more", cli.QuoteName(urls[0]), len(urls)-1)
	}
}

// answersWithin is the longest that a healthy node takes to report its status.
const answersWithin = time.Second

// nodeAndOrigins says what a verb waits for that asks a node. That is the node, if it does not
// report its status, otherwise what the node may wait for.
func nodeAndOrigins(n admin.Client) func(context.Context) string {
	n.Waits = nil
	return func(ctx context.Context) string {
		asking, cancel := context.WithTimeout(ctx, answersWithin)
		defer cancel()
		s, err := n.Status(asking)
		if err != nil {
			return "the node at " + n.Socket() + ", which does not answer"
		}
		var urls []string
		for _, l := range s.Links {
			urls = append(urls, l.URL)
		}
		text := "the node at " + n.Socket()
		if from := origins(urls...)(ctx); from != "" {
			text += ", which is well and may wait for " + from
		}
		if len(s.Problems) > 0 {
			text = "the node at " + n.Socket() + ", which says: " + cli.QuoteText(s.Says)
		}
		return text + "; hearth status says how it is"
	}
}

// nodeConfig is the configuration that a node starts with. origin is the command's argument, and
// wins over everything else.
func nodeConfig(s *settings.Settings, origin string) (node.Config, error) {
	c := node.Config{Links: s.Tree(origin), Cache: s.Cache, File: s.File, Mounts: s.Mounts,
		Admin: s.Admin, Ring: s.Ring, Volumes: s.Volumes, S3: s.S3, FuseWithout: s.FuseWithout, Version: version()}
	for _, file := range []*string{&c.S3.CredentialsFile, &c.S3.Certificate, &c.S3.CertificateKey, &c.S3.AccessLog} {
		*file = fromHere(*file) // they are opened again later, and a daemon leaves this directory
	}
	for i := range c.Volumes.Devices { // read again at each connection
		c.Volumes.Devices[i].SecretFile = fromHere(c.Volumes.Devices[i].SecretFile)
	}
	return c, c.Validate()
}

// fromHere is a file's absolute name, for a process in another directory. "" stays "".
func fromHere(file string) string {
	if abs, err := filepath.Abs(file); err == nil && file != "" {
		return abs
	}
	return file
}
