package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fakeKit writes a kit that notes how it was called and fills its cache, and has a qemu be there or not.
func fakeKit(t *testing.T, qemu bool, script string) (kit, dir string) {
	t.Helper()
	dir = t.TempDir()
	bin := filepath.Join(dir, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) {
		if err := os.WriteFile(name, []byte("#!/bin/sh\n"+text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if qemu {
		write(filepath.Join(bin, "qemu-system-x86_64"), "")
	}
	kit = filepath.Join(dir, "nvmet-target")
	write(kit, `echo "$@" >>"${0%/*}/calls"; `+script)
	t.Setenv("PATH", bin)
	return kit, dir
}

func TestTheKernelIsInstalledOnce(t *testing.T) {
	// A kernel that is missing is installed into a directory of its own, by the kit. One that is there is not, unless
	// there is no qemu. What is missing is said, with the cure.
	const fill = `PATH=/bin:/usr/bin; mkdir -p "$NVMET_CACHE" && : >"$NVMET_CACHE/initramfs"`
	kit, dir := fakeKit(t, true, fill)
	for _, k := range kernels() {
		for range 2 {
			if err := k.install(kit, filepath.Join(dir, "cache", k.name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	calls, _ := os.ReadFile(filepath.Join(dir, "calls"))
	if want := "install --suite bookworm\ninstall --suite trixie\n"; string(calls) != want {
		t.Errorf("called with %q", calls)
	}
	k := kernels()[0]
	kit, dir = fakeKit(t, false, "echo 'missing packages: qemu-system-x86' >&2; exit 1")
	if err := os.WriteFile(filepath.Join(dir, "initramfs"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := k.install(kit, dir); err == nil || !strings.Contains(err.Error(), "Linux 6.1") || !strings.Contains(err.Error(), "missing packages: qemu-system-x86") {
		t.Errorf("without qemu: %v", err)
	}
	if err := k.install(filepath.Join(dir, "nothing"), dir); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "NVMET=FILE") {
		t.Errorf("without the kit: %v", err)
	}
}

func TestWithoutAKernelsTarget(t *testing.T) {
	// make test-nvmeof fails without the kit, and a soak says that it leaves its tests out.
	t.Setenv(cacheVariable, t.TempDir())
	for _, soak := range []bool{false, true} {
		parts, err := nvmeofParts(filepath.Join(t.TempDir(), "nothing"), soak)
		if err != nil || len(parts) != len(kernels())*len(kernelPackages()) {
			t.Fatalf("%d parts, %v", len(parts), err)
		}
		var said strings.Builder
		r := &run{out: &said}
		for _, p := range parts {
			r.part(t.Context(), p)
		}
		skipped, failed := 0, len(parts)
		if soak {
			skipped, failed = failed, skipped
		}
		if r.skipped != skipped || len(r.failures) != failed || strings.Count(said.String(), "SKIP kernel target") != skipped {
			t.Errorf("soak %t: %d skipped, %d failed:\n%s", soak, r.skipped, len(r.failures), said.String())
		}
	}
	for areas, want := range map[string]bool{"": true, "peer,cache": false, "cache,volume/": true, "volume/nvmetcp": true} {
		if concerned(areas) != want {
			t.Errorf("AREAS=%s: %t", areas, !want)
		}
	}
}

func TestAPartIsKeptByItsBinaryAndItsName(t *testing.T) {
	// The same binary that has passed as one part has not passed as another.
	t.Chdir(t.TempDir())
	if err := os.MkdirAll(results, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("x.test", []byte("one"), 0o600); err != nil {
		t.Fatal(err)
	}
	if done, err := passed("x.test", "volume"); done || err != nil {
		t.Errorf("at first: %t, %v", done, err)
	}
	if err := keep("x.test", "kernel target 6.1, volume"); err != nil {
		t.Fatal(err)
	}
	for as, want := range map[string]bool{"kernel target 6.1, volume": true, "kernel target 6.12, volume": false, "volume": false} {
		if done, err := passed("x.test", as); done != want || err != nil {
			t.Errorf("as %s: %t, %v", as, done, err)
		}
	}
	if err := os.WriteFile("x.test", []byte("two"), 0o600); err != nil {
		t.Fatal(err)
	}
	if done, err := passed("x.test", "kernel target 6.1, volume"); done || err != nil {
		t.Errorf("another binary: %t, %v", done, err)
	}
}
