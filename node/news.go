package node

import (
	"context"

	"github.com/hearthfs/hearth/namespace"
)

// namesStatus is what the namespace says of itself.
func (n *Node) namesStatus() NamesStatus {
	t := n.tree.Stats()
	s := NamesStatus{Where: t.Where, Figures: t.Figures()}
	if s.Where == "" {
		s.Where = "memory"
	}
	if t.Ill != nil {
		s.Ill = t.Ill.Error()
	}
	if t.Stale != nil {
		s.Stale = explained(t.Stale).Error()
	}
	return s
}

// treeEvents are what the namespace tells: logged, and kept for status.
func (n *Node) treeEvents() namespace.Events {
	return namespace.Events{
		Ill: func(cause error) {
			n.events.Trouble("names ill", "names are kept in memory until they move", "cause", cause.Error())
		},
		Moved: func(dir string) { n.events.Info("names have moved", "dir", dir) },
		Rebuilt: func(cause error) {
			n.events.Trouble("names rebuilt", "names are collected anew", "cause", cause.Error()) // without the stack that Pebble's have
		},
		Origin: func(link string, err error) {
			n.askable(link, err)
			if err == nil {
				n.events.Info("origin can be asked again", "link", link)
				return
			}
			n.events.Trouble("origin "+link, "origin cannot be asked", "link", link, "cause", explained(err))
		},
		Refused: func(link, key string) {
			n.events.Trouble("refused key "+link, "key cannot be shown", "link", link, "key", key)
		},
		Log: func(text string) { n.events.Debug("names database", "text", text) },
	}
}

// newsQueue bounds the changes that wait for the disk tier to hear of them; what
// does not fit is only evicted later.
const newsQueue = 1024

// tellReplaced has the disk tier evict blocks of replaced versions first.
func (n *Node) tellReplaced(ctx context.Context) {
	if n.disk == nil {
		return
	}
	old := make(chan uint64, newsQueue)
	cancel := n.tree.Subscribe(func(c namespace.Change) {
		if c.Old == 0 {
			return
		}
		select {
		case old <- c.Old:
		default:
		}
	})
	n.group.Go(func() error {
		defer cancel()
		for {
			select {
			case <-ctx.Done():
				return nil
			case id := <-old:
				if x, err := n.tree.Node(ctx, id); err == nil && !x.Dir {
					n.disk.Replaced(&x.Object)
				}
			}
		}
	})
}
