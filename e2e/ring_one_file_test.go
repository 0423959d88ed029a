package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// seeds is a name that has the addresses of all nodes.
const seeds = "seeds.hearth.test"

// ringOneFile starts nodes by one configuration file, that says nothing of any of them: each
// has its host's name, listens in a network that the file gives, and joins by one name, at
// which it finds itself as well. All start at once.
func ringOneFile(e *env) {
	r := e.ring(0)
	if r == nil {
		return
	}
	list := r.load(r.o, r.few(1, 30))
	nodes := r.add(5, 0)
	hosts := "127.0.0.1 localhost\n"
	for _, m := range nodes {
		hosts += m.at.Addr().String() + " " + seeds + "\n"
	}
	e.must(os.WriteFile(e.path("hosts"), []byte(hosts), 0o644), "write the hosts' addresses")
	e.must(unix.Mount(e.path("hosts"), "/etc/hosts", "", unix.MS_BIND, ""), "show them in their place")
	e.Cleanup(func() { _ = unix.Unmount("/etc/hosts", unix.MNT_DETACH) })
	listen, err := nodes[0].at.Addr().Prefix(16)
	e.must(err, "make a network of all nodes")
	here := e.path("here") // each node takes it for its own
	set := r.set
	set.cache = filepath.Base(here) + "/cache"
	set.extra = fmt.Sprintf("node: {listen: %q}\ncluster: {name: e2e, key_file: %q}\nmounts: [{path: %q}]", listen, r.key, here+"/mnt")
	config := e.writeConfig(r.o, set)
	e.must(os.Mkdir(here, 0o755), "make the nodes' directory")
	for _, m := range nodes {
		m.upBy(config, here)
	}
	for _, m := range nodes {
		m.waitFor("mounted " + here + "/mnt")
		m.dial()
	}
	r.agree(nodes...)
	if s := nodes[0].sees(); s != nil {
		for _, x := range s.Members {
			if a, err := netip.ParseAddrPort(x.Address); err != nil || a.Addr() != r.named(x.Name).at.Addr() {
				r.Errorf("%s is at %s, its host at %v", x.Name, x.Address, r.named(x.Name).at.Addr())
			}
		}
	}
	r.once("origin", list, nodes, func() { r.all("cold", list, 1, nodes...) })
	r.quit(nodes...)
}

// upBy starts `hearth up` on the node's machine, whose host name is the node's, and where a
// directory is the node's own.
func (m *member) upBy(config, here string) {
	m.ring.Helper()
	own := m.ring.path("own-" + m.name)
	m.ring.must(os.MkdirAll(own+"/mnt", 0o755), "make the node's directory")
	args := append(m.at.Wrap(), "unshare", "--mount", "--uts", "sh", "-c", `echo "$0" >/proc/sys/kernel/hostname && mount --bind "$1" "$2" && shift 2 && exec "$@"`,
		m.name, own, here, m.ring.env.hearth, "up", "--config", config, "--admin-socket", here+"/admin.sock", "--join", seeds)
	m.hearth = &hearth{e: m.ring.env, config: own + "/admin.yaml"}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = m.ring.environ(m.ring.o)
	m.hearth.process = m.ring.env.start(cmd)
	m.hearth.dir = fmt.Sprintf("/proc/%d/root%s", m.Process.Pid, here+"/mnt")
}
