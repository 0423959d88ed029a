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

// answerWait is how long the node and its mounts may take to answer before the
// service manager is told that they serve; each answers from memory.
const answerWait = 10 * time.Second

// sayInterval is how often the service manager's word for people is renewed where
// no watchdog asks for more.
const sayInterval = 30 * time.Second

// Alive tells in a word how the node is, or why it does not answer.
type Alive func(context.Context) (says string, err error)

// Ready tells the service manager, if one listens, that the node serves, once it
// does: a node that does not answer is an error.
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

// Stopping tells it that the node is about to end.
func Stopping() { notify(daemon.SdNotifyStopping + "\n" + status("unmounting")) }

// Say tells it in a line for people what goes on; systemctl status shows it.
func Say(what string) { notify(status(what)) }

func status(what string) string { return "STATUS=" + Line(what) }

// Line is a text of which a terminal obeys nothing: keys are in it, and whatever they hold.
func Line(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, text)
}

func notify(state string) { _, _ = daemon.SdNotify(false, state) }

// Watch tells the service manager, if one listens, how the node is, and feeds its
// watchdog as often as the unit asks for, as long as alive answers: a node that
// hangs is restarted.
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
		case ctx.Err() != nil: // Stopping has been said
		case err != nil:
			Say("does not answer: " + err.Error())
		case watchdog > 0:
			notify(daemon.SdNotifyWatchdog + "\n" + status(says))
		default:
			Say(says)
		}
	}
}
