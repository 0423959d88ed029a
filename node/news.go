package node

import (
	"github.com/hearthfs/hearth/namespace"
	"github.com/hearthfs/hearth/node/status"
	"github.com/hearthfs/hearth/node/watch"
)

// namesStatus returns the status of the namespace.
func (n *Node) namesStatus() status.Names {
	t := n.tree.Stats()
	s := status.Names{Where: t.Where, Figures: t.Figures()}
	if s.Where == "" {
		s.Where = "memory"
	}
	if t.Ill != nil {
		s.Ill = t.Ill.Error()
	}
	if t.Stale != nil {
		s.Stale = watch.Explained(t.Stale).Error()
	}
	return s
}

// treeEvents returns events of the namespace that are logged, and kept for status.
func (n *Node) treeEvents() namespace.Events {
	return namespace.Events{
		Ill: func(cause error) {
			n.events.Trouble("names ill", "names are kept in memory until they move", "cause", cause.Error())
		},
		Moved: func(dir string) { n.events.Info("names have moved", "dir", dir) },
		Rebuilt: func(cause error) {
			n.events.Trouble("names rebuilt", "names are collected anew", "cause", cause.Error()) // without Pebble's stack
		},
		Origin: func(link string, err error) {
			n.askable(link, err)
			if err == nil {
				n.events.Info("origin can be asked again", "link", link)
				return
			}
			n.events.Trouble("origin "+link, "origin cannot be asked", "link", link, "cause", watch.Explained(err))
		},
		Name: func(link string, err error) {
			n.events.Trouble("name "+link, "name cannot be asked for, others can", "link", link, "cause", watch.Explained(err))
		},
		Differs: func(link, says string) {
			l := n.links.named(link)
			switch {
			case l == nil:
			case says == "":
				l.differs.Store(nil)
				n.events.Info("listings of the origin name the versions that HEADs do again", "link", link)
			default:
				l.differs.Store(&says)
				n.events.Warn("listings of the origin name other versions than HEADs: versions come from HEADs, a request for each name", "link", link, "key", says)
			}
		},
		Refused: func(link, key string) {
			n.events.Trouble("refused key "+link, "key cannot be shown", "link", link, "key", key)
		},
		Log: func(text string) { n.events.Debug("names database", "text", text) },
	}
}
