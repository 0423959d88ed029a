package e2e

import (
	"compress/gzip"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hearthfs/hearth/internal/hearthtest"
)

// dist makes the packages and uses each as its users do: the .deb in a bare Debian root,
// where the unit's line and fstab mount, and which is as before once it is purged; the image
// in a root that holds nothing else.
func dist(e *env) {
	o := e.origin()
	set, err := hearthtest.Set("D1")
	e.must(err, "data set")
	list := e.load(o, set.Reduced(2, 20))
	e.make("dist")
	e.staticBinary(e.packaged("hearth-*-linux-" + runtime.GOARCH))
	sums, err := os.ReadFile(filepath.Join(e.repo, "dist", "SHA256SUMS"))
	e.must(err, "read the checksums")
	e.inDebian(o, list, e.packaged("hearth_*_"+runtime.GOARCH+".deb"))
	e.inImage(o, list, e.packaged("hearth-*-linux-"+runtime.GOARCH+".oci.tar"))
	e.make("dist")
	if again, err := os.ReadFile(filepath.Join(e.repo, "dist", "SHA256SUMS")); err != nil || string(again) != string(sums) {
		e.Errorf("made again the packages differ (%v):\n%s%s", err, sums, again)
	}
}

func (e *env) make(target string) {
	e.Helper()
	cmd := exec.CommandContext(e.ctx, "make", target)
	cmd.Dir, cmd.Env = e.repo, append(os.Environ(), "ARCHS="+runtime.GOARCH)
	if out, err := cmd.CombinedOutput(); err != nil {
		e.Fatalf("make %s: %v\n%s", target, err, out)
	}
}

// packaged is the one file in dist/ that the pattern names.
func (e *env) packaged(pattern string) string {
	e.Helper()
	found, err := filepath.Glob(filepath.Join(e.repo, "dist", pattern))
	if err != nil || len(found) != 1 {
		e.Fatalf("dist/%s: %v, %v", pattern, found, err)
	}
	return found[0]
}

// rootConfig is what the node in a root of its own is told.
func (e *env) rootConfig(o *server) []byte {
	return fmt.Appendf(nil, "origin: {url: %q, endpoint: %q, region: us-east-1, path_style: true}\nmounts: [{path: /mnt/data}]\n"+
		"cache: {ram: 64MiB, disks: [{path: /var/cache/hearth, size: 1GiB}], free_floor: 1GiB}\nadmin: {listen: \"-\"}\n", "s3://"+o.bucket, o.endpoint)
}

// inDebian installs, uses, removes and purges the package.
func (e *env) inDebian(o *server, list []hearthtest.File, deb string) {
	e.Helper()
	root := e.debian()
	at := func(name string) string { return filepath.Join(root, name) }
	inside := func(args ...string) string {
		e.Helper()
		cmd := exec.CommandContext(e.ctx, "chroot", append([]string{root}, args...)...)
		cmd.Env = append(e.environ(o), "PATH=/usr/sbin:/usr/bin:/sbin:/bin")
		out, err := cmd.CombinedOutput()
		if err != nil {
			e.Fatalf("in the Debian root: %v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	e.must(os.Mkdir(at("mnt/data"), 0o755), "make the mount point")
	before := e.tree(root)
	text, err := os.ReadFile(deb)
	e.must(errors.Join(err, os.WriteFile(at("hearth.deb"), text, 0o644)), "copy the package")
	inside("dpkg", "-i", "/hearth.deb")
	e.must(os.Remove(at("hearth.deb")), "remove the copy")
	if links, _ := filepath.Glob(at("etc/systemd/system/*/hearth.service")); len(links) > 0 || len(e.daemons("/usr/bin/hearth")) > 0 {
		e.Errorf("the installation enabled or started something: %v", links)
	}
	e.inPackage(at)
	unit, err := os.ReadFile(at("usr/lib/systemd/system/hearth.service"))
	e.must(err, "read the installed unit")
	_, line, _ := strings.Cut(string(unit), "\nExecStart=")
	line, _, _ = strings.Cut(line, "\n")
	e.must(os.WriteFile(at("etc/hearth/hearth.yaml"), e.rootConfig(o), 0o644), "configure")

	m := e.manager("@hearth-e2e-dist-" + filepath.Base(e.dir))
	cmd := exec.Command("chroot", append([]string{root}, strings.Fields(line)...)...)
	cmd.Env = append(e.environ(o), "NOTIFY_SOCKET="+m.socket)
	p := e.start(cmd)
	m.wait(p, 0, "READY=1")
	e.good("through the package's unit", epoch(at("mnt/data"), list, 1, 2, 0))
	if code := p.terminate(syscall.SIGTERM); code != 0 {
		e.Errorf("after SIGTERM the node ended with %d", code)
	}

	table, err := os.ReadFile(at("etc/fstab"))
	e.must(err, "read fstab")
	e.must(os.WriteFile(at("etc/fstab"), fmt.Appendf(nil, "s3://%s /mnt/data hearth ro,_netdev,allow_other 0 0\n", o.bucket), 0o644), "write fstab")
	inside("mount", "/mnt/data")
	e.good("through fstab", epoch(at("mnt/data"), list, 2, 2, 0))
	inside("umount", "/mnt/data")
	e.eventually("the end of the process behind fstab's mount", func() bool { return len(e.daemons("mount.hearth")) == 0 })
	e.must(os.WriteFile(at("etc/fstab"), table, 0o644), "write fstab back")

	inside("dpkg", "-r", "hearth")
	if kept, err := os.ReadFile(at("etc/hearth/hearth.yaml")); err != nil || string(kept) != string(e.rootConfig(o)) {
		e.Errorf("after the removal the configuration: %q, %v", kept, err)
	}
	if _, err := os.Stat(at("usr/bin/hearth")); err == nil {
		e.Error("the removal left the binary")
	}
	inside("dpkg", "-P", "hearth")
	after := e.tree(root)
	for _, name := range after {
		// The group stays, as Debian has it; groupadd leaves what was there before.
		if _, found := slices.BinarySearch(before, name); !found && !slices.Contains([]string{"/etc/group-", "/etc/gshadow-"}, name) {
			e.Errorf("purging left %s", name)
		}
	}
	if len(after) < len(before) {
		e.Errorf("%d names before, %d after", len(before), len(after))
	}
}

// staticBinary needs no loader and no library, and says its version.
func (e *env) staticBinary(name string) {
	e.Helper()
	f, err := elf.Open(name)
	e.must(err, "read %s", name)
	defer func() { _ = f.Close() }()
	libraries, err := f.ImportedLibraries()
	if err != nil || len(libraries) > 0 || slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		e.Errorf("%s is not static: %v, %v", name, libraries, err)
	}
	if out, err := exec.CommandContext(e.ctx, name, "--version").CombinedOutput(); err != nil || !strings.HasPrefix(string(out), "hearth ") {
		e.Errorf("%s --version: %v\n%s", name, err, out)
	}
}

// inPackage looks at what the package brings beside the binary and the unit.
func (e *env) inPackage(at func(string) string) {
	e.Helper()
	for name, says := range map[string]string{
		"etc/hearth/hearth.yaml":                          "origin",
		"usr/share/doc/hearth/README.Debian":              "PRUNEFS",
		"usr/share/man/man1/hearth.1.gz":                  "umount",
		"usr/share/man/man5/hearth.yaml.5.gz":             "free_floor",
		"usr/share/man/man8/mount.hearth.8.gz":            "umount",
		"usr/share/bash-completion/completions/hearth":    "hearth",
		"usr/share/zsh/vendor-completions/_hearth":        "#compdef hearth",
		"usr/share/fish/vendor_completions.d/hearth.fish": "complete -c hearth",
		"etc/group": "\nhearth:x:", // made by postinst
	} {
		f, err := os.Open(at(name))
		e.must(err, "open %s of the package", name)
		r := io.Reader(f)
		if strings.HasSuffix(name, ".gz") {
			r, err = gzip.NewReader(f)
			e.must(err, "unpack %s", name)
		}
		text, err := io.ReadAll(r)
		_ = f.Close()
		if err != nil || !strings.Contains(string(text), says) {
			e.Errorf("%s does not say %s (%v)", name, says, err)
		}
	}
}

// tree is what lies in a root, sorted, without what dpkg and mount(8) note for themselves.
func (e *env) tree(root string) (names []string) {
	e.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path, root)
		if slices.Contains([]string{"/proc", "/var/lib/dpkg", "/var/log", "/run/mount"}, name) {
			return fs.SkipDir
		}
		names = append(names, name)
		return nil
	})
	e.must(err, "list %s", root)
	slices.Sort(names)
	return names
}

// debian is a bare Debian root with what the package depends on. It is made once, by
// debootstrap from where this machine's own packages come, and kept beside the tools.
func (e *env) debian() string {
	e.Helper()
	sh := func(script string, args ...string) {
		e.Helper()
		cmd := exec.CommandContext(e.ctx, "sh", append([]string{"-euc", script, "sh"}, args...)...)
		cmd.Env = append(os.Environ(), "LC_ALL=C")
		if out, err := cmd.CombinedOutput(); err != nil {
			e.Fatalf("make a Debian root (Debian package debootstrap): %v\n%s", err, out)
		}
	}
	kept := filepath.Join(e.repo, ".tools", "debian-root.tar")
	if _, err := os.Stat(kept); err != nil {
		sh(`. /etc/os-release
mirror=$(apt-get indextargets --format '$(CODENAME) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' | sed -n "s/^$VERSION_CODENAME main //p" | head -n 1)
debootstrap --variant=minbase --include=fuse3,ca-certificates "$VERSION_CODENAME" "$1" "$mirror"
tar -C "$1" -cf "$2.part" . && mv "$2.part" "$2"
rm -rf --one-file-system "$1"`, e.path("debootstrap"), kept)
	}
	root := e.path("debian")
	e.must(os.Mkdir(root, 0o755), "make a root")
	sh(`tar -C "$1" -xf "$2"`, root, kept)
	e.ownRoot(root)
	return root
}

// ownRoot gives a root what the kernel gives: /proc and the FUSE device.
func (e *env) ownRoot(root string) {
	e.Helper()
	for _, dir := range []string{"proc", "dev"} {
		e.must(os.MkdirAll(filepath.Join(root, dir), 0o755), "make /%s", dir)
	}
	e.must(unix.Mount("proc", filepath.Join(root, "proc"), "proc", 0, ""), "mount /proc")
	e.must(unix.Mknod(filepath.Join(root, "dev", "fuse"), unix.S_IFCHR|0o666, int(unix.Mkdev(10, 229))), "make /dev/fuse")
}

// inImage unpacks the image archive as a container's root and mounts there, with nothing but
// what the image holds.
func (e *env) inImage(o *server, list []hearthtest.File, archive string) {
	e.Helper()
	type blob struct{ Digest string }
	var index struct{ Manifests []blob }
	var manifest struct {
		Config blob
		Layers []blob
	}
	var image struct {
		Architecture string
		Config       struct{ Entrypoint, Cmd []string }
	}
	store, root := e.path("oci"), e.path("image")
	e.must(errors.Join(os.Mkdir(store, 0o755), os.Mkdir(root, 0o755)), "make directories")
	untar := func(file, to string) {
		e.Helper()
		if out, code := e.run("tar", "-C", to, "-xf", file); code != 0 {
			e.Fatalf("unpack %s: %s", file, out)
		}
	}
	path := func(b blob) string { return filepath.Join(store, "blobs", strings.Replace(b.Digest, ":", "/", 1)) }
	read := func(file string, v any) {
		e.Helper()
		text, err := os.ReadFile(file)
		e.must(errors.Join(err, json.Unmarshal(text, v)), "read %s", file)
	}
	untar(archive, store)
	read(filepath.Join(store, "index.json"), &index)
	if len(index.Manifests) != 1 {
		e.Fatalf("the archive holds %d images", len(index.Manifests))
	}
	read(path(index.Manifests[0]), &manifest)
	read(path(manifest.Config), &image)
	if image.Architecture != runtime.GOARCH || !slices.Equal(image.Config.Entrypoint, []string{"/usr/bin/hearth"}) || !slices.Equal(image.Config.Cmd, []string{"up"}) {
		e.Errorf("the image: %+v", image)
	}
	for _, l := range manifest.Layers {
		untar(path(l), root)
	}
	if held, want := e.tree(root), []string{"", "/etc", "/etc/ssl", "/etc/ssl/certs", "/etc/ssl/certs/ca-certificates.crt", "/usr", "/usr/bin", "/usr/bin/hearth"}; !slices.Equal(held, want) {
		e.Errorf("the image holds %q, not %q", held, want)
	}
	e.must(os.MkdirAll(filepath.Join(root, "etc/hearth"), 0o755), "make /etc/hearth")
	e.must(os.MkdirAll(filepath.Join(root, "mnt/data"), 0o755), "make the mount point")
	e.must(os.WriteFile(filepath.Join(root, "etc/hearth/hearth.yaml"), e.rootConfig(o), 0o644), "configure")
	e.ownRoot(root)
	cmd := exec.Command("chroot", slices.Concat([]string{root}, image.Config.Entrypoint, image.Config.Cmd)...)
	cmd.Env = e.environ(o)
	p := e.start(cmd)
	p.waitFor("serving at")
	e.good("through the image", epoch(filepath.Join(root, "mnt/data"), list, 3, 2, 0))
	_ = p.Process.Signal(syscall.SIGTERM)
	if code := p.exit(30 * time.Second); code != 0 {
		e.Errorf("after SIGTERM the image's node ended with %d:\n%s", code, p.out)
	}
}
