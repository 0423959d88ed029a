package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// soakOptions say how much of the soak runs.
type soakOptions struct {
	size, areas string
	atMost      time.Duration
	nvmet       string // the kit that boots a kernel's NVMe/TCP target
}

const (
	// results is where a soak notes what has passed, by the SHA-256 of what ran.
	results = "e2e/results"
	// often is how many times each test of a changed package runs.
	often = "20"
)

// soakParts are the models that run without the race detector, every scenario, the kernel's NVMe/TCP
// target, and the recently changed packages. Scenarios run in their full size, masked, as nobody, and with the race
// detector. Changed packages run often, beside each other. Tests draw their seeds. What has passed is
// left out until it changes, except for the models, which draw anew.
func soakParts(o soakOptions, began time.Time) ([]part, error) {
	if o.size != "all" && o.size != "full" {
		return nil, fmt.Errorf("-size %q: all or full", o.size)
	}
	folders, err := touched(".")
	if err != nil {
		return nil, err
	}
	env := []string{"HEARTH_RESUME=yes"}
	if o.areas != "" {
		folders = strings.Split(o.areas, ",")
		env = append(env, "HEARTH_AREAS="+o.areas)
	}
	var until time.Time
	if o.atMost > 0 {
		until = began.Add(o.atMost)
		env = append(env, fmt.Sprint("HEARTH_UNTIL=", until.Unix()))
	}
	alone, err := withoutRace(".")
	if err != nil {
		return nil, err
	}
	parts := []part{{name: "units without race", command: goTest("-count", "1", "-timeout", "1h"), tests: alone, env: []string{"CGO_ENABLED=0"}}}
	for _, v := range []struct{ name, level, variant string }{
		{"scenarios", o.size, ""}, {"masked", "whole-core", "masked"}, {"as nobody", "whole-core", "nobody"}, {"scenarios with race", "all", "race"},
	} {
		p := scenarios(v.name, allScenarios, slices.Concat(env, []string{"HEARTH_E2E=" + v.level, "HEARTH_VARIANT=" + v.variant})...)
		p.env = slices.DeleteFunc(p.env, func(s string) bool { return slices.Contains(seeded(), s) })
		parts = append(parts, p)
	}
	if concerned(o.areas) {
		target, err := nvmeofParts(o.nvmet, true)
		if err != nil {
			return nil, err
		}
		parts = append(parts, target...)
	}
	changed, err := changedPackages(folders)
	if err != nil {
		return nil, err
	}
	parts = append(parts, changed...)
	for i := range parts {
		parts[i].until = until
	}
	return parts, nil
}

// changedPackages are the tests of the packages in the folders, as binaries.
func changedPackages(folders []string) ([]part, error) {
	pkgs, err := packages()
	if err != nil {
		return nil, err
	}
	bin, err := filepath.Abs(filepath.Join(results, "bin"))
	if err != nil {
		return nil, fmt.Errorf("find the directory of results: %w", err)
	}
	var parts []part
	for _, pkg := range pkgs {
		dir := "./" + short(pkg)
		if !slices.Contains(folders, filepath.Clean(dir)) || !hasTests(dir) {
			continue
		}
		file := filepath.Join(bin, strings.ReplaceAll(short(pkg), "/", "-")+".test")
		parts = append(parts, part{name: filepath.Clean(dir) + " x " + often, binary: true, beside: true, dir: dir,
			command: []string{"go", "tool", "test2json", "-t", "-p", pkg, file, "-test.v=test2json", "-test.timeout=1h"},
			tests:   []string{"-test.count", often}, env: []string{raceOptions},
			begin: func() (bool, error) {
				if err := buildTests(pkg, file); err != nil {
					return false, err
				}
				return passed(file, pkg)
			},
			kept: func() error { return keep(file, pkg) }})
	}
	return parts, nil
}

// buildTests builds a package's tests with the race detector. Where no test is built so there is no binary.
func buildTests(pkg, file string) error {
	if err := os.Remove(file); err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("remove the last binary of the tests of %s: %w", pkg, err)
	}
	build := exec.Command("go", "test", "-c", "-race", "-trimpath", "-buildvcs=false", "-ldflags=-w", "-vet=off", "-o", file, pkg)
	build.Env = append(os.Environ(), "CGO_ENABLED=1")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the tests of %s: %w: %s", pkg, err, out)
	}
	return nil
}

// passed reports whether the same binary has passed as that part. Without a binary there is nothing to run.
func passed(file, as string) (bool, error) {
	sum, err := sumOf(file)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	kept, err := os.ReadFile(filepath.Join(results, "packages"))
	if err != nil && !os.IsNotExist(err) {
		return false, fmt.Errorf("read what passed before: %w", err)
	}
	return slices.Contains(strings.Split(string(kept), "\n"), sum+" "+as), nil
}

func hasTests(dir string) bool {
	files, _ := filepath.Glob(filepath.Join(dir, "*_test.go")) // the pattern is well-formed
	return len(files) > 0
}

// sumOf is a file's SHA-256.
func sumOf(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", fmt.Errorf("open a test's binary: %w", err)
	}
	defer func() { _ = f.Close() }()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("read a test's binary: %w", err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// keep notes that a package's tests have passed as that part.
func keep(file, as string) error {
	sum, err := sumOf(file)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(results, "packages"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, sum, as)
	if closed := f.Close(); err == nil {
		err = closed
	}
	return err
}
