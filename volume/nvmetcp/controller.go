package nvmetcp

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

const (
	adminEntries = 32 // the least size of an admin queue (Fabrics, 3.3)
	adminSlots   = 8  // a keep-alive, an event and some commands of its handler
	// setupTimeouts bounds the setup of a controller, some 20 commands, in Options.Timeout.
	setupTimeouts = 4
	// readyPoll is between two looks at CSTS: nvmet is ready at once, a real controller in milliseconds.
	readyPoll = 10 * time.Millisecond
)

// controller is one association with a target. Any error ends it whole.
type controller struct {
	o      *Options
	portal string
	id     uint16
	number uint64 // of the controllers of a Namespace, from 1
	admin  *queue
	io     []*queue
	next   atomic.Uint32 // of io, for the next command
	info   controllerInfo
	access atomic.Uint32 // the path's, as an access
	// changed is told what Identify says after an event; it may refuse.
	changed func(namespaceInfo) error

	work sync.WaitGroup
	gone chan struct{} // closed when the controller ended

	mu     sync.Mutex // guards the rest; taken before that of a queue
	queues []*queue   // all that have a connection
	cause  error      // why it ended
}

// connect makes a controller on a portal, and identifies the namespace. What fails names the portal, and the caller
// the subsystem.
func connect(ctx context.Context, o *Options, portal string, changed func(namespaceInfo) error) (*controller, error) {
	c := &controller{o: o, portal: portal, changed: changed, gone: make(chan struct{})}
	c.access.Store(uint32(optimized))
	if err := c.within(ctx, c.setUp); err != nil {
		c.close(err)
		return nil, fmt.Errorf("%s: %w", portal, err)
	}
	c.work.Go(c.keepAlive)
	c.work.Go(c.events)
	return c, nil
}

// within starts the watchdog, and runs what comes before the other goroutines. ctx and a limit end the controller.
func (c *controller) within(ctx context.Context, setUp func(context.Context) error) error {
	limit := setupTimeouts * c.o.Timeout
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("%w: not set up within %v", ErrPath, limit))
	defer cancel()
	stop := context.AfterFunc(ctx, func() { c.end(context.Cause(ctx)) })
	defer stop()
	c.work.Go(c.watch)
	return setUp(ctx)
}

func (c *controller) setUp(ctx context.Context) error {
	caps, err := c.enable(ctx)
	if err != nil {
		return err
	}
	if err := c.identify(caps); err != nil {
		return err
	}
	if err := c.setUpQueues(ctx); err != nil {
		return err
	}
	return c.refresh()
}

// enable connects the admin queue, and waits until the controller is ready.
func (c *controller) enable(ctx context.Context) (caps capabilities, err error) {
	if c.admin, err = c.connectQueue(ctx, 0, adminEntries, adminSlots); err != nil {
		return 0, err
	}
	value, err := c.admin.do(propertyGet(propertyCAP, true), nil)
	if err != nil {
		return 0, err
	}
	if _, err = c.admin.do(propertySet(propertyCC, ccEnable), nil); err != nil {
		return 0, err
	}
	return capabilities(value), c.awaitReady(ctx, capabilities(value))
}

// identify asks for the limits of the controller.
func (c *controller) identify(caps capabilities) (err error) {
	b := make([]byte, identifyLen)
	if _, err = c.admin.do(identify(cnsController, 0), b); err != nil {
		return err
	}
	if c.info, err = parseController(b, caps.minPage()); err != nil {
		return err
	}
	if caps.maxEntries() < 2 {
		return protocolError("queues of %d entries, and 2 is the least", caps.maxEntries())
	}
	// A queue is full with one entry free. SQSIZE is one less than its entries, and so many are in flight.
	c.info.maxCommands = min(caps.maxEntries()-1, either(c.info.maxCommands, maxDepth))
	return nil
}

func (c *controller) awaitReady(ctx context.Context, caps capabilities) error {
	limit := max(time.Duration(caps.timeout())*500*time.Millisecond, c.o.Timeout)
	for begun := time.Now(); ; {
		csts, err := c.admin.do(propertyGet(propertyCSTS, false), nil)
		switch {
		case err != nil:
			return err
		case csts&cstsFatal != 0:
			return fmt.Errorf("%w: the controller reports a fatal error (CSTS %xh)", ErrPath, csts)
		case csts&cstsReady != 0:
			return nil
		case time.Since(begun) > limit:
			return fmt.Errorf("%w: the controller is not ready after %v (CSTS %xh)", ErrPath, limit, csts)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(readyPoll):
		}
	}
}

// setUpQueues asks for events and I/O queues, and connects as many as are granted.
func (c *controller) setUpQueues(ctx context.Context) error {
	if events := c.info.events & (noticeNamespaces | noticeANA); events != 0 {
		if _, err := c.admin.do(setFeatures(featureEvents, events), nil); err != nil {
			return err
		}
	}
	n := uint32(c.o.Queues - 1) // 0's based, for submission and completion queues
	granted, err := c.admin.do(setFeatures(featureQueues, n|n<<16), nil)
	if err != nil {
		return err
	}
	depth := min(c.o.Depth, c.info.maxCommands)
	for i := range min(c.o.Queues, int(granted&0xffff)+1, int(granted>>16&0xffff)+1) {
		q, err := c.connectQueue(ctx, uint16(i+1), depth+1, depth)
		if err != nil {
			return fmt.Errorf("queue %d: %w", i+1, err)
		}
		c.io = append(c.io, q)
	}
	return nil
}

// connectQueue makes a connection of its own, starts its reader, and sends Connect.
func (c *controller) connectQueue(ctx context.Context, number uint16, entries, depth int) (*queue, error) {
	q, err := dialQueue(ctx, c.o, c.portal, number, depth)
	if err != nil {
		return nil, err
	}
	q.lost = c.end
	if err := c.start(q); err != nil {
		return nil, err
	}
	controller, kato := c.id, time.Duration(0)
	if number == 0 {
		controller, kato = anyController, c.o.KeepAlive
	} else {
		q.inline = c.info.inline
	}
	result, err := q.do(connectCommand(number, entries, c.o.FlowControl, kato), connectData(c.o, controller))
	if err != nil {
		return nil, explainConnect(err, c.o)
	}
	if number == 0 {
		c.id = uint16(result)
	}
	return q, authenticate(q, c.o, uint32(result))
}

// explainConnect adds what to do to the refusals that a wrong configuration has.
func explainConnect(err error, o *Options) error {
	var refused *StatusError
	if !errors.As(err, &refused) || refused.Status.Type() != 1 {
		return err
	}
	switch refused.Status.Code() {
	case 0x82:
		return fmt.Errorf("%w: is the subsystem's NQN right?", err)
	case 0x84:
		return fmt.Errorf("%w: let the host %s into the subsystem, or give the address the name of a host that is "+
			"(host_nqn=)", err, o.HostNQN)
	}
	return err
}

// start runs the reader of a queue, unless the controller ended meanwhile.
func (c *controller) start(q *queue) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause != nil {
		_ = q.conn.Close() // nobody knows it yet
		return c.cause
	}
	c.queues = append(c.queues, q)
	c.work.Go(func() {
		c.end(q.read())
		q.finish(c.ended())
	})
	return nil
}

// end closes all connections, once. Each reader then fails what is in flight on its queue.
func (c *controller) end(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause != nil {
		return
	}
	c.cause = cause
	close(c.gone)
	for _, q := range c.queues {
		_ = q.conn.Close() // what was in flight is unknown anyway
	}
}

// ended is why the controller ended, or nil.
func (c *controller) ended() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
}

// close ends the controller and waits for all that works for it.
func (c *controller) close(cause error) {
	c.end(cause)
	c.work.Wait()
}

// shutDown tells the target that nothing more will come, so that it need not wait for the keep-alive.
func (c *controller) shutDown() {
	_, _ = c.admin.do(propertySet(propertyCC, ccShutdown), nil) // it is a courtesy, and the watchdog bounds it
	c.close(ErrClosed)
}

// do runs a command on a queue with a free slot, in turn, or waits for one.
func (c *controller) do(cmd command, data []byte) error {
	first := c.next.Add(1)
	n := uint32(len(c.io))
	for i := range n {
		q := c.io[(first+i)%n]
		select {
		case s := <-q.free:
			_, err := q.run(s, cmd, data)
			return err
		default:
		}
	}
	_, err := c.io[first%n].do(cmd, data)
	return err
}

// watch is the watchdog: it looks at all commands in flight, so that none needs a timer. A process that was stopped
// misses looks, too, and blames nobody.
func (c *controller) watch() {
	ticks := time.NewTicker(c.o.Timeout / looks)
	defer ticks.Stop()
	for {
		select {
		case <-c.gone:
			return
		case <-ticks.C:
		}
		c.mu.Lock()
		queues := c.queues
		c.mu.Unlock()
		for _, q := range queues {
			if q.overdue() {
				c.end(fmt.Errorf("%w: queue %d: no answer within %v", ErrPath, q.number, c.o.Timeout))
			}
		}
	}
}

// keepAlive sends one twice in the time after which the target would give us up. The watchdog waits for the answer.
func (c *controller) keepAlive() {
	ticks := time.NewTicker(c.o.KeepAlive / 2)
	defer ticks.Stop()
	for {
		select {
		case <-c.gone:
			return
		case <-ticks.C:
		}
		if _, err := c.admin.do(command{opcode: opKeepAlive}, nil); err != nil {
			c.end(fmt.Errorf("%w: %w", ErrPath, err))
			return
		}
	}
}

// events waits for one event after another. The target keeps those that come between.
func (c *controller) events() {
	for {
		result, err := c.admin.do(command{opcode: opAsyncEvent, endless: true}, nil)
		if err == nil {
			err = c.event(uint32(result))
		}
		if err != nil {
			c.end(fmt.Errorf("%w: asynchronous event: %w", ErrPath, err))
			return
		}
	}
}

// event reads the log page that belongs to an event, which allows the next one, and asks what has changed.
func (c *controller) event(result uint32) error {
	kind, info, page := result&7, result>>8&0xff, result>>16&0xff
	switch {
	case kind == eventNotice && info == infoNamespaces:
		if err := c.readLog(logNamespaces, make([]byte, identifyLen)); err != nil {
			return err
		}
		return c.refresh()
	case kind == eventNotice && info == infoANA:
		return c.refresh() // which reads that log
	case page == 0:
		return nil
	}
	return c.readLog(page, make([]byte, 512)) // an error's or the health's, which say nothing about the namespace
}

func (c *controller) readLog(page uint32, b []byte) error {
	_, err := c.admin.do(getLogPage(page, 0, len(b), 0), b)
	return err
}

// refresh asks for the state of the path, the shape and the identity of the namespace. The path comes first: one that
// is inaccessible says that the namespace has no blocks.
func (c *controller) refresh() error {
	b := make([]byte, identifyLen)
	if _, err := c.admin.do(identify(cnsNamespace, c.o.NSID), b); err != nil {
		return c.explainNamespace(err)
	}
	space, wrong := parseNamespace(b)
	if err := c.readAccess(space.group); err != nil {
		return err
	}
	if wrong != nil {
		return c.explainNamespace(wrong)
	}
	_, err := c.admin.do(identify(cnsDescriptors, c.o.NSID), b)
	switch {
	case err == nil:
		space.id = parseDescriptors(b)
	case !errors.Is(err, ErrRefused): // targets before NVMe 1.3 have no such list
		return err
	}
	return c.changed(space)
}

// explainNamespace says which namespaces there are, if ours is not.
func (c *controller) explainNamespace(err error) error {
	if !errors.Is(err, ErrNamespace) {
		return err
	}
	err = fmt.Errorf("namespace %d: %w", c.o.NSID, err)
	b := make([]byte, identifyLen)
	if _, failed := c.admin.do(identify(cnsActiveList, 0), b); failed != nil {
		return err
	}
	return fmt.Errorf("%w: the subsystem has namespaces %v", err, parseActive(b))
}

// readAccess reads the state of the path. One that cannot be used ends the controller.
func (c *controller) readAccess(group uint32) error {
	if !c.info.ana || group == 0 {
		return nil
	}
	const groupsOnly = 1 // RGO: without namespaces
	b := make([]byte, anaLogLen)
	if _, err := c.admin.do(getLogPage(logANA, groupsOnly, len(b), 0), b); err != nil {
		return err
	}
	a := parseAccess(b, group)
	c.access.Store(uint32(a))
	if !a.usable() {
		return fmt.Errorf("%w: the target says that this path is %s", ErrPath, a)
	}
	return nil
}
