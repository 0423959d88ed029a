package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// kitVariable names the variable with the kit, as hearthtest.KernelVariable does, which brings an S3 client.
const kitVariable = "HEARTH_NVMET"

// cacheVariable names the variable with the directory that has the kernels, each in a directory of its own. For the
// kit it is the directory of one kernel.
const cacheVariable = "NVMET_CACHE"

// kernel is one that has an NVMe/TCP target: a directory's name, and the suite of Debian that it comes from.
type kernel struct{ name, suite string }

// kernels are the oldest and the newest that the target is tested with. 6.12 can authenticate.
func kernels() []kernel { return []kernel{{"6.1", "bookworm"}, {"6.12", "trixie"}} }

// kernelPackages have tests that begin with TestKernel.
func kernelPackages() []string { return []string{"volume/nvmetcp", "volume"} }

// nvmeofParts are the tests of the NVMe/TCP initiator, and of volumes over it, against the Linux kernel's own target.
// It is booted by a kit that is not part of the repository. In a soak they are left out once they have passed, and
// where there is no target.
func nvmeofParts(kit string, soak bool) ([]part, error) {
	cache, err := kernelCache()
	if err != nil {
		return nil, err
	}
	if kit, err = filepath.Abs(kit); err != nil {
		return nil, fmt.Errorf("find the kit: %w", err)
	}
	bin, err := filepath.Abs(filepath.Join(results, "bin"))
	if err != nil {
		return nil, fmt.Errorf("find the directory of results: %w", err)
	}
	var parts []part
	for _, k := range kernels() {
		for _, dir := range kernelPackages() {
			pkg, file, home := module+"/"+dir, filepath.Join(bin, strings.ReplaceAll(dir, "/", "-")+".test"), filepath.Join(cache, k.name)
			p := part{name: "kernel target " + k.name + ", " + dir, binary: true, dir: dir,
				command: []string{"go", "tool", "test2json", "-t", "-p", pkg, file, "-test.v=test2json", "-test.timeout=1h"},
				tests:   []string{"-test.count", "1", "-test.run", "^TestKernel"},
				env:     []string{raceOptions, kitVariable + "=" + kit, cacheVariable + "=" + home},
				begin: func() (bool, error) {
					if err := k.install(kit, home); err != nil {
						return false, err
					}
					return false, buildTests(pkg, file)
				}}
			if soak {
				p = p.resumable(file)
			}
			parts = append(parts, p)
		}
	}
	return parts, nil
}

// resumable is a part of a soak: it is skipped where it cannot begin, and left out if the same binary has passed.
func (p part) resumable(file string) part {
	begin, as := p.begin, p.name
	p.begin = func() (bool, error) {
		if _, err := begin(); err != nil {
			return false, skip{err}
		}
		return passed(file, as)
	}
	p.kept = func() error { return keep(file, as) }
	return p
}

// concerned reports whether the areas of a soak take in the packages with kernel tests. "" means all areas.
func concerned(areas string) bool {
	return areas == "" || slices.ContainsFunc(strings.Split(areas, ","), func(a string) bool { return slices.Contains(kernelPackages(), filepath.Clean(a)) })
}

// kernelCache is the directory of all kernels.
func kernelCache() (string, error) {
	if dir := os.Getenv(cacheVariable); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find a directory for kernels: %w: set %s", err, cacheVariable)
	}
	return filepath.Join(dir, "nvmet-target"), nil
}

// install has the kit bring the kernel, and qemu, if one of them is missing.
func (k kernel) install(kit, home string) error {
	if _, err := os.Stat(kit); err != nil {
		return fmt.Errorf("no NVMe/TCP target of a Linux kernel: %w: NVMET=FILE names the kit nvmet-target", err)
	}
	_, kernel := os.Stat(filepath.Join(home, "initramfs"))
	_, qemu := exec.LookPath("qemu-system-x86_64")
	if kernel == nil && qemu == nil {
		return nil
	}
	install := exec.Command(kit, "install", "--suite", k.suite)
	install.Env = append(os.Environ(), cacheVariable+"="+home)
	install.WaitDelay = time.Minute
	if out, err := install.CombinedOutput(); err != nil {
		return fmt.Errorf("no NVMe/TCP target of Linux %s: %w: %s", k.name, errors.Join(kernel, qemu, err), strings.TrimSpace(string(out)))
	}
	return nil
}
