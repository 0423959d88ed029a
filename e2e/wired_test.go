package e2e

// wired runs a node whose wiring holds a second disk where the volume will stand
// and a loop-back Source where the ring will stand; e2e/wired is its main.
func wired(e *env) {
	binary := e.program("wired")
	o := e.origin()
	list := e.load(o, e.set("D1", 5, 60, 20, 100))
	p := e.proxy(o)
	set := settings{endpoint: p.endpoint, binary: binary}
	set.environ = []string{"WIRED_ENDPOINT=" + p.endpoint, "WIRED_SOCKET=" + e.path("wired.sock"), "WIRED_CACHE=" + e.path("cache")}
	h := e.mount(o, set)
	e.good("cold, through ring and volume", epoch(h.dir, list, 1, 8, 0))
	h.quit()
	// The node's own disk is lost; what lasts is the volume.
	set.environ[2] = "WIRED_CACHE=" + e.path("another")
	h.launch(o, set)
	before := p.gets()
	e.good("from the volume", epoch(h.dir, list, 2, 8, 0))
	if again := p.gets() - before; again != 0 {
		e.Errorf("what the volume holds was asked of the origin %d times", again)
	}
	h.quit()
}
