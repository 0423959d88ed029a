package machine

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"
	"unicode"

	"github.com/coreos/go-systemd/v22/daemon"
)

// answerWait bounds how long the node and its mounts may take to answer before the service manager is told that
// they serve. Each answers from memory.
const answerWait = 10 * time.Second

// sayInterval is how often the status line for people is renewed if no watchdog asks for a shorter interval.
const sayInterval = 30 * time.Second

// Alive returns a line on how the node is, or the reason why it does not answer.
type Alive func(context.Context) (says string, err error)

// Ready tells the service manager, if there is one, that the node serves. A node that does not answer is an
// error.
func Ready(ctx context.Context, alive Alive) error {
	ctx, cancel := context.WithTimeout(ctx, answerWait)
	defer cancel()
	says, err := alive(ctx)
	if err != nil {
		return err
	}
	notify(daemon.SdNotifyReady + "\n" + status(says))
	return nil
}

// Stopping tells the service manager that the node is about to end.
func Stopping() { notify(daemon.SdNotifyStopping + "\n" + status("unmounting")) }

// Say tells the service manager, in a line for people, what the node does. systemctl status shows it.
func Say(what string) { notify(status(what)) }

// Waiting tells the service manager that no node serves, and that one is started: until then its keeper feeds the watchdog.
func Waiting() {
	notify(daemon.SdNotifyWatchdog + "\n" + status("the node has ended: the next one starts"))
}

func status(what string) string { return "STATUS=" + Line(what) }

// Line replaces characters in a text that a terminal might obey. The text may hold keys, which may be any
// bytes.
func Line(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, text)
}

func notify(state string) { _, _ = daemon.SdNotify(false, state) }

// Watch tells the service manager, if there is one, how the node is. As long as alive answers, it also feeds
// the watchdog as often as the unit asks for. So a node that hangs is restarted.
func Watch(ctx context.Context, alive Alive) error {
	watchdog, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		return fmt.Errorf("systemd watchdog: %w", err)
	}
	if os.Getenv("NOTIFY_SOCKET") == "" {
		return nil
	}
	interval := sayInterval
	if watchdog > 0 {
		interval = min(interval, watchdog/2)
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		check, cancel := context.WithTimeout(ctx, interval/2)
		says, err := alive(check)
		cancel()
		switch {
		case ctx.Err() != nil: // Stopping has told it
		case err != nil:
			Say("does not answer: " + err.Error())
		case watchdog > 0:
			notify(daemon.SdNotifyWatchdog + "\n" + status(says))
		default:
			Say(says)
		}
	}
}
