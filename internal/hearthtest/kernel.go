package hearthtest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// KernelVariable names the variable with the tool that boots a Linux kernel's own NVMe/TCP target. Without it, tests
// against that target are skipped: `make test-nvmeof` sets it.
const KernelVariable = "HEARTH_NVMET"

// KernelNQN is the subsystem of a KernelTarget that is open to everybody.
const KernelNQN = "nqn.2014-08.org.nvmexpress:hearth-test"

// KernelTarget is a Linux kernel with its NVMe/TCP target, in a guest under qemu.
type KernelTarget struct {
	tool, dir string
	// Ports are the addresses of its portals.
	Ports []string
}

// BootKernel starts a guest with so many portals, which ends with the test. args are the tool's.
func BootKernel(t testing.TB, ports int, args ...string) *KernelTarget {
	t.Helper()
	k := &KernelTarget{tool: os.Getenv(KernelVariable), dir: filepath.Join(t.TempDir(), "guest")}
	if k.tool == "" {
		t.Skipf("%s names no nvmet-target", KernelVariable)
	}
	var numbers []string
	for range ports {
		address := freePort()
		k.Ports = append(k.Ports, address)
		numbers = append(numbers, address[strings.LastIndexByte(address, ':')+1:])
	}
	t.Cleanup(func() { _, _ = k.Run("stop") }) // its time to live ends it, too
	k.Must(t, "start", append([]string{"--port", strings.Join(numbers, ","), "--ttl", "900"}, args...)...)
	return k
}

// freePort is an address of loopback whose port nobody gets by chance while the guest is dead: it lies below those that
// Linux gives to outgoing connections and to listeners that name none (net.ipv4.ip_local_port_range, 32768 on).
func freePort() string {
	for {
		address := fmt.Sprintf("127.0.0.1:%d", 10000+rand.IntN(20000))
		if l, err := net.Listen("tcp", address); err == nil {
			_ = l.Close() // the guest listens there next
			return address
		}
	}
}

// Run runs a verb of the tool, and returns what it says.
func (k *KernelTarget) Run(verb string, args ...string) (string, error) {
	out, err := exec.Command(k.tool, append([]string{verb, "--dir", k.dir}, args...)...).CombinedOutput()
	return string(out), err
}

// Must is Run that has to succeed.
func (k *KernelTarget) Must(t testing.TB, verb string, args ...string) {
	t.Helper()
	if out, err := k.Run(verb, args...); err != nil {
		t.Fatalf("nvmet-target %s %v: %v\n%s", verb, args, err, out)
	}
}

// Restart is a loss of power, after which the target is there again.
func (k *KernelTarget) Restart(t testing.TB) {
	t.Helper()
	k.Kill(t)
	k.Must(t, "start", "again")
}

// Kill is a loss of power. A killed qemu counts as gone a moment before its ports are closed, and the tool starts none
// while they are open.
func (k *KernelTarget) Kill(t testing.TB) {
	t.Helper()
	k.Must(t, "kill")
	for _, address := range k.Ports {
		for conn, err := net.Dial("tcp", address); err == nil; conn, err = net.Dial("tcp", address) {
			_ = conn.Close() // nothing was sent
		}
	}
}
