package members

import (
	"context"
	"encoding/hex"
	"log/slog"
	"maps"
	"net"
	"strings"
	"sync"
	"time"
)

const (
	levelInfo  = slog.LevelInfo
	levelWarn  = slog.LevelWarn
	levelError = slog.LevelError
	// saidAgain is how long the same line is not logged again.
	saidAgain = 10 * time.Minute
	// maxSaid different lines are logged in that time, so that strangers who send packets
	// from many addresses cannot fill a log.
	maxSaid = 256
	// maxLines wait for a slow logger. More are dropped and counted.
	maxLines = 64
)

// line is a log line.
type line struct {
	level slog.Level
	text  string
	args  []any
}

// journal takes log lines from callbacks, which must not wait for a logger.
type journal struct {
	to    *slog.Logger
	lines chan line

	mu      sync.Mutex // guards the rest
	said    map[string]time.Time
	dropped int64
}

func newJournal(to *slog.Logger) *journal {
	return &journal{to: to, lines: make(chan line, maxLines), said: map[string]time.Time{}}
}

// say queues a line.
func (j *journal) say(level slog.Level, text string, args ...any) {
	select {
	case j.lines <- line{level, text, args}:
	default:
		j.mu.Lock()
		j.dropped++
		j.mu.Unlock()
	}
}

// once is say, unless a line with the same key was logged lately. It reports whether it
// did.
func (j *journal) once(key string, level slog.Level, text string, args ...any) bool {
	now := time.Now()
	j.mu.Lock()
	last, ok := j.said[key]
	if ok && now.Sub(last) < saidAgain {
		j.mu.Unlock()
		return false
	}
	if !ok && len(j.said) >= maxSaid {
		maps.DeleteFunc(j.said, func(_ string, at time.Time) bool { return now.Sub(at) >= saidAgain })
		if len(j.said) >= maxSaid {
			j.dropped++
			j.mu.Unlock()
			return false
		}
	}
	j.said[key] = now
	j.mu.Unlock()
	j.say(level, text, args...)
	return true
}

// forget lets the next line of a key be logged at once.
func (j *journal) forget(key string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.said, key)
}

// run logs lines until stop is closed, and then the lines that still wait.
func (j *journal) run(stop <-chan struct{}) {
	for {
		select {
		case l := <-j.lines:
			j.to.Log(context.Background(), l.level, l.text, l.args...)
			continue
		default:
		}
		select {
		case l := <-j.lines:
			j.to.Log(context.Background(), l.level, l.text, l.args...)
		case <-stop:
			if len(j.lines) == 0 {
				return
			}
		}
	}
}

// heard is the writer of memberlist's logger.
type heard struct{ m *Members }

// Write takes a line, often under memberlist's locks. The few lines that are of use to
// people are logged again in plain words. One line tells what no callback does.
func (h heard) Write(p []byte) (int, error) {
	m := h.m
	text := strings.TrimSpace(string(p))
	if m.cfg.Log.Enabled(context.Background(), slog.LevelDebug) {
		m.log.say(slog.LevelDebug, text)
	}
	_, text, _ = strings.Cut(text, "memberlist: ")
	from := ""
	if _, addr, ok := strings.Cut(text, "from="); ok {
		from, _, _ = strings.Cut(addr, " ")
	}
	switch {
	case strings.HasPrefix(text, "Suspect ") && strings.HasSuffix(text, " has failed, no acks received"):
		if id, ok := nodeID(strings.Fields(text)[1]); ok {
			m.table.suspect(id, Suspect)
		}
	case wrongKey(text) && from != "": // otherwise this node asked, and reports it itself
		host, _, err := net.SplitHostPort(from)
		if err != nil {
			host = from
		}
		m.refuse("key "+host, levelError, "refused a node at "+host+": it has another cluster key or another cluster.name than this one (what is used is made of both), or only one of the two has a key; give all nodes of a cluster the same key and name")
	case strings.Contains(text, "over TCP but UDP probes failed"):
		name := text
		if id, ok := nodeID(afterWord(text, "connect to ")); ok {
			member, _ := m.table.find(id)
			name = member.Name
		}
		m.log.once("udp "+name, levelWarn, "gossip reaches a node by TCP, not by UDP: let UDP through to its port, both ways", "node", name)
	case strings.HasPrefix(text, "Refuting a suspect message"), strings.HasPrefix(text, "Refuting a dead message"):
		m.log.once("refuted", levelWarn, "other nodes did not hear this one for a while: if that repeats, look for overload, a paused machine or a lossy network")
	case strings.HasPrefix(text, "handler queue full"):
		m.log.once("queue", levelWarn, "more gossip comes than this node can take in: it is overloaded")
	}
	return len(p), nil
}

func afterWord(text, word string) string {
	_, rest, _ := strings.Cut(text, word)
	first, _, _ := strings.Cut(rest, " ")
	return first
}

// wrongKey recognises what memberlist says on either side when keys differ. It compares
// texts, since memberlist has no errors to compare with. A test checks the texts against
// memberlist.
func wrongKey(text string) bool {
	for _, said := range []string{"no installed keys could decrypt", "encryption is configured but remote state is not encrypted",
		"remote state is encrypted and encryption is not configured", "unsupported encryption version", "payload is too small to decrypt"} {
		if strings.Contains(text, said) {
			return true
		}
	}
	return false
}

func nodeID(name string) (ID, bool) {
	b, err := hex.DecodeString(name)
	if err != nil || len(b) != len(ID{}) {
		return ID{}, false
	}
	return ID(b), true
}
