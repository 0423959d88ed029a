package machine

import (
	"context"
	"fmt"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// Ready tells systemd, if it listens, that the node serves.
func Ready() { notify(daemon.SdNotifyReady) }

// Stopping tells it that the node is about to end.
func Stopping() { notify(daemon.SdNotifyStopping) }

func notify(state string) { _, _ = daemon.SdNotify(false, state) }

// Watchdog tells systemd that the node lives, as often as the unit asks for, as
// long as alive says so: a node that hangs is restarted.
func Watchdog(ctx context.Context, alive func(context.Context) error) error {
	interval, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		return fmt.Errorf("systemd watchdog: %w", err)
	}
	if interval == 0 {
		return nil
	}
	tick := time.NewTicker(interval / 2)
	defer tick.Stop()
	for {
		check, cancel := context.WithTimeout(ctx, interval/4)
		if alive(check) == nil {
			notify(daemon.SdNotifyWatchdog)
		}
		cancel()
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
