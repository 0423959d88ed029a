package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/hearthfs/hearth/draft"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/node/status"
)

// inPlace says that a mount changes objects where they are: that an open for writing without O_TRUNC is no EOPNOTSUPP. Programs that need
// it are run from then on.
const inPlace = true

// program is what a program of Debian's does in a directory of its own. $1 is a tree of files to begin with, $2 a git repository.
type program struct {
	name    string
	needs   string // its programs and, as python3:MODULE, modules
	inPlace bool   // it changes a file that was closed
	does    string // for bash; what it prints, errors included, is compared
}

// debianPrograms are run on a mount and on a local file system.
var debianPrograms = []program{
	{"tar", "tar", false, `
tar -cf - -C "$1" . | tar -xf -; echo ${PIPESTATUS[*]}; diff -r "$1" . && echo same
tar -cf all.tar --sort=name -C "$1" .; tar -tf all.tar | wc -l; tar -df all.tar -C "$1" && echo same
tar -czf part.tgz --sort=name -C "$1" d1 d2; tar -xzOf part.tgz d1/f7 | cmp - d1/f7 && echo same
tar -xf all.tar --overwrite ./d1/f7; echo $?; tar -xf all.tar -U ./d2/f7; echo $?; diff -r "$1/d2" d2 && echo same`},
	{"tar-append", "tar", true, `
tar -cf a.tar -C "$1" d1; tar -rf a.tar -C "$1" d2; echo $?; tar -uf a.tar -C "$1" d1 d2; tar --delete -f a.tar d1/f7; tar -tf a.tar`},
	{"cp", "cp mv install", false, `
cp -a "$1" copy; echo $?; diff -r "$1" copy && echo same; cp -a "$1/." copy; echo $?
cp -r --sparse=always "$1/large" sparse; cmp "$1/large" sparse && echo same
cp --remove-destination "$1/d1/f7" sparse; cp --backup=numbered "$1/d1/f8" sparse; echo $?; ls
mv copy moved; echo $?; ls; diff -r "$1" moved && echo same; mv moved/d1/f7 moved/d2; mv -f moved/large moved/d1/f8; echo $?
install -D -m 644 "$1/d1/f9" new/place/f9; echo $?; cmp "$1/d1/f9" new/place/f9 && echo same
rm -r moved/d2; echo $?; ls moved`},
	{"git", "git", false, `
git clone -q -c core.logAllRefUpdates=false "$2" work; echo $?; cd work; git log --format=%s | wc -l
echo change > d1/f7; git add -A; git commit -q -m one; echo $?; git mv text prose; git rm -q d1/f8; git commit -q -m two; echo $?
git checkout -q -b side HEAD~1; echo side > side; git add side; git commit -q -m side; git checkout -q master; git merge -q -m merge side; echo $?
git tag v1; git tag -a -m two v2; git branch -q -d side; git status --short; git fsck --strict; echo $?; git log --format='%s %T' | head -8; git pack-refs --all
git config core.fileMode false; git config --unset core.symlinks; rm -f .git/index # which tell of the file system
git clone -q --bare "file://$2" ../bare.git; echo $?; cd ../bare.git; git fsck; git rev-parse HEAD: HEAD~3:d1; git config core.fileMode false; git config --unset core.symlinks; ls objects/pack | wc -l`},
	{"git-gc", "git", true, `
git clone -q "$2" work; cd work; echo change > d1/f7; git commit -q -a -m one; git reflog | cut -d' ' -f2-; git repack -q -a -d; git gc -q; echo $?
git checkout -q HEAD~1; git checkout -q -; git stash list; echo x > x; git add x; git stash -q; git stash pop -q; git reset -q --hard; git fetch -q; git fsck; echo $?; git log --format='%s %T' | head -3
git reflog | wc -l; git rebase -q HEAD~2; git commit -q --amend -m other; git log --format='%s %T' | head -3; git config core.fileMode false; git config --unset core.symlinks; rm -f .git/index`},
	{"sqlite", "sqlite3", false, `
sqlite3 one.db 'create table t(a,b); with recursive c(n) as (select 1 union all select n+1 from c where n<5000) insert into t select n,hex(n*n) from c; create index i on t(b); delete from t where a%3=0; vacuum; pragma integrity_check; select count(*),sum(a) from t'; echo $?
sqlite3 one.db 'select count(*) from t where b like "3%"'; ls`},
	{"sqlite-again", "sqlite3", true, `
for mode in delete truncate persist wal; do
	sqlite3 $mode.db "pragma journal_mode=$mode; create table t(a,b)"
	for i in 1 2 3; do sqlite3 $mode.db "begin; with recursive c(n) as (select 1 union all select n+1 from c where n<2000) insert into t select n,hex(n*$i) from c; commit; pragma integrity_check; select count(*) from t"; done
	sqlite3 $mode.db "pragma journal_mode=delete; begin; delete from t; rollback; update t set b=a where a%7=0; select count(*),sum(a) from t"; echo $?
done; ls`},
	{"dd", "dd truncate", false, `
dd if="$1/large" of=whole bs=1M status=none; dd if="$1/large" of=whole bs=3333 count=100 status=none; cmp -n 333300 "$1/large" whole && stat -c %s whole
dd if="$1/large" of=synced bs=256k oflag=dsync count=8 status=none; dd if="$1/large" of=flushed bs=1M conv=fsync status=none; cmp "$1/large" flushed && echo same
dd if="$1/large" of=hole bs=64k seek=100 count=3 status=none; stat -c %s hole; dd if=hole bs=64k skip=100 status=none | cmp -n 196608 - "$1/large" && echo same
truncate -s 5M sparse; stat -c %s sparse; cmp -n 5242880 sparse /dev/zero && echo zeroes; fallocate -l 1M room 2>/dev/null || : > room; : > room`},
	{"dd-notrunc", "dd truncate", true, `
cp "$1/large" f; dd if="$1/large" of=f bs=1000 seek=500 skip=7 count=300 conv=notrunc status=none; echo $?; dd if="$1/large" of=f oflag=append conv=notrunc bs=1k count=5 status=none
truncate -s -3000 f; truncate -s +70000 f; truncate -s 20M g; dd if="$1/large" of=g bs=1M seek=3 count=2 conv=notrunc status=none; truncate -s 3500000 g; stat -c '%n %s' f g`},
	{"sed", "sed perl", false, `
cp "$1/text" .; sed -i s/line/row/ text; echo $?; head -2 text; sed -i.bak '1d;$d' text; echo $?; wc -l < text; ls; sed -i -e 2,5d text text.bak; wc -l text text.bak
perl -pi -e 's/row/line/' text; echo $?; perl -pi.orig -e 's/line/l/' text; head -1 text; ls; sort text -o other; echo $?; uniq other sorted; wc -l < sorted; split -l 100 -d "$1/text" part-; ls; cat part-* | cmp - "$1/text" && echo same`},
	{"vim", "vim", false, `
cp "$1/text" .; vim -u NONE -es -c 'set backup backupcopy=no' -c '%s/line/row/' -c 'normal Golast' -c wq text; echo $?; tail -1 text; ls -A
vim -u NONE -es -c 'set writebackup backupcopy=no' -c '1,10d' -c wq text; echo $?; vim -u NONE -es -c 'r !echo new' -c 'w other' -c 'sav third' -c q! text; echo $?; wc -l text other third; ls -A`},
	{"vim-in-place", "vim", true, `
cp "$1/text" .; vim -u NONE -es -c '%s/line/row/' -c 'normal Golast' -c wq text; echo $?; vim -u NONE -es -c 'set backupcopy=yes backup' -c 1d -c wq text; echo $?; ls -A
vim -u NONE -es -c 'set undofile undodir=.' -c 1d -c wq text; echo $?; rm -f .*.un~ *.un~; vim -u NONE -es -c '2,3w! >> text~' -c 'w! third' -c 'w! third' -c q! text; echo $?; wc -l *; ls -A`},
	{"shell", "tee", false, `
echo one > a; (echo two; echo three) > a; cat a; for i in $(seq 500); do echo $i; done > count; tail -1 count; seq 1000 | tee x y | wc -l; cmp x y && echo same
exec 3> log; for i in 1 2 3; do echo $i >&3; cat log; done; exec 3>&-; exec 4>> new; echo 1 >&4; echo 2 >&4; exec 4>&-; cat new; cat "$1/text" > b; cat b b > c; wc -l c
{ echo begin; cat; } > d < a; cat d; set -C; echo x > a; echo $?; echo x >| a; cat a; sort < count > sorted; head -1 sorted; cat <<< text > e; cat e; printf '' > empty; stat -c %s empty`},
	{"append", "tee sort", true, `
sort -o text "$1/text"; sort -r -o text text; head -1 text; echo one > a; echo two >> a; echo three | tee -a a; cat a; for i in $(seq 100); do echo $i >> count; done; wc -l < count; exec 3<> a; echo ONE >&3; exec 3>&-; cat a
for w in 1 2 3 4; do (for i in $(seq 50); do echo "$w $i" >> all; done) & done; wait; sort -n all | uniq | wc -l; sort -o all all`},
	{"rsync", "rsync", false, `
rsync -r --times "$1/" copy; echo $?; diff -r "$1" copy && echo same; echo changed > copy/d1/f7; rm copy/d2/f3; rsync -rc --delete "$1/" copy; echo $?; diff -r "$1" copy && echo same
rsync -r --whole-file --delay-updates --checksum "$1/d1/" copy/d2; echo $?; rsync -rc --backup --suffix=.old "$1/d2/" copy/d1; echo $?; ls -A copy copy/d1 | wc -l
rsync -r --inplace "$1/d1/" new; echo $?; rsync -rc --remove-source-files new/ newer; find new newer -type f | wc -l; rsync -a "$1/" all; echo $?`},
	{"rsync-inplace", "rsync", true, `
cp -r "$1" copy; printf x | dd of=copy/large bs=1 seek=100000 conv=notrunc status=none; echo y >> copy/d1/f7; : > copy/d2/f3; rsync -rc --inplace --no-whole-file "$1/" copy; echo $?; diff -r "$1" copy && echo same
head -c 3000000 copy/large > part; rsync --append "$1/large" part; cmp part "$1/large" && echo same; rsync --append-verify "$1/text" copy/d1/f7; echo $?`},
	{"fio", "fio", true, `
for mode in write randwrite "rw --rwmixread=50" randrw; do for engine in psync mmap; do
	fio --name=job --filename=file --size=8m --bs=16k --rw=${mode} --ioengine=$engine --verify=crc32c --verify_fatal=1 --fallocate=none --randseed=1 --allrandrepeat=1 --do_verify=1 --output=/dev/null; echo $mode $engine $?
done; done; fio --name=four --directory=. --numjobs=4 --size=4m --bs=4k-64k --rw=randwrite --ioengine=psync --verify=xxhash --fsync=50 --output=/dev/null; echo $?; ls; rm -f *`},
	{"stress-ng", "stress-ng", false, `
for s in hdd seek rename dentry filename utime mmap fallocate readahead flock iomix dir chdir access chmod copy-file dirdeep dirmany fcntl fstat getdent lockf lockofd locka open sendfile sync-file touch; do
	n=2; [ $s = fcntl ] && n=1 # its workers share a directory, which the first one to end takes from one that has yet to begin
	stress-ng --quiet --temp-path . --$s $n --$s-ops 40 --timeout 6 --verify --hdd-bytes 2m --seek-size 2m --iomix-bytes 2m --mmap-bytes 2m --mmap-file --fallocate-bytes 2m --readahead-bytes 2m --dentries 20 --filename-opts posix --dir-dirs 64 --chdir-dirs 64 2>&1 | grep -v skipped; echo $s ${PIPESTATUS[0]}
done; ls -A`},
	{"bonnie", "bonnie++", true, `bonnie++ -q -f -d . -u 0:0 -s 32M:64k -r 16 -n 1:4096:0:4 -m x 2>/dev/null | tr , '\n' | wc -l; echo ${PIPESTATUS[0]}; ls`},
	{"postmark", "postmark", true, `
printf 'set location .\nset number 100\nset transactions 300\nset size 500 20000\nset seed 7\nset subdirectories 3\nset buffering false\nset report terse\nrun\nquit\n' | postmark | wc -l; echo ${PIPESTATUS[1]}; ls`},
	{"h5py", "python3:h5py", false, `
/usr/bin/python3 -c '
import h5py
data = bytes(range(256)) * 4000
with h5py.File("one.h5", "w") as f:
    g = f.create_group("g")
    g.create_dataset("chunked", data=list(data[:20000]), dtype="u1", chunks=(1000,), compression="gzip")
    d = f.create_dataset("grows", (10,), maxshape=(None,), dtype="f8", chunks=(100,))
    for n in 100, 5000, 1000:
        d.resize((n,)); d[:] = list(range(n))
    f.flush()
    d.attrs["text"] = "x" * 100
with h5py.File("one.h5", "r") as f:
    print(sorted(f), f["grows"].shape, sum(f["grows"]), sum(f["g/chunked"]), len(f["grows"].attrs["text"]))'`},
	{"h5py-again", "python3:h5py", true, `
/usr/bin/python3 -c '
import h5py
for mode in "w", "a", "r+", "a":
    with h5py.File("two.h5", mode) as f:
        d = f.require_dataset("d", (1000,), "i4", maxshape=None, chunks=None)
        d[:] = [len(f) + x for x in range(1000)]
        f.create_dataset("n%d" % len(f), data=list(range(5000)))
        if mode == "r+": del f["n1"]; f["n2"][:] = 7; f.create_dataset("n1", data=[1, 2])
with h5py.File("two.h5", "r") as f:
    print(sorted(f), sum(f["d"]))'`},
	{"torch", "python3:torch", false, `
/usr/bin/python3 -c '
import os, torch
torch.manual_seed(1)
net = torch.nn.Sequential(torch.nn.Linear(300, 400), torch.nn.ReLU(), torch.nn.Linear(400, 10))
best = torch.optim.Adam(net.parameters())
for step in 1, 2:
    net(torch.ones(4, 300)).sum().backward(); best.step()
    state = {"net": net.state_dict(), "best": best.state_dict(), "step": step}
    torch.save(state, "last.pt")                      # straight, twice over the same name
    torch.save(state, "old.pt", _use_new_zipfile_serialization=False)
    torch.save(state, "step.pt.tmp"); os.replace("step.pt.tmp", "step-%d.pt" % step)
    with open("fd.pt", "wb") as f:
        torch.save(state, f); f.flush(); os.fsync(f.fileno())
    os.replace("fd.pt", "best.pt")
for name in "last.pt", "old.pt", "step-1.pt", "step-2.pt", "best.pt":
    got = torch.load(name)
    print(name, got["step"], all(torch.equal(a, b) for a, b in zip(got["net"].values(), net.state_dict().values())) == (got["step"] == 2))
torch.jit.script(net).save("script.pt"); print(torch.jit.load("script.pt")(torch.ones(1, 300)).shape)
' 2>&1; ls; rm old.pt script.pt # which have addresses in them`},
}

// writePrograms has programs of Debian's write through a mount and on a local file system: what they print and end with is the same,
// and so is what they leave. The bucket has the same, and no temporary name was ever in it, as its own log says.
func writePrograms(e *env) {
	e.programsAreThere()
	log := e.path("requests")
	o := e.originWith(hearthtest.ServerOptions{AccessLog: log})
	h := e.mount(o, writable(settings{}))
	local, source, repo := e.path("local"), e.path("source"), e.path("repo")
	e.must(os.Mkdir(local, 0o755), "make a directory")
	e.sourceTree(source, repo)
	ran := 0
	for _, p := range debianPrograms {
		if p.inPlace && !inPlace {
			continue
		}
		ran++
		theirs, ours := e.does(&p, local, source, repo), e.does(&p, h.dir, source, repo)
		if theirs != ours {
			e.Errorf("%s on the mount:\n%s\non a local file system:\n%s", p.name, ours, theirs)
		}
		e.eventually("what "+p.name+" closed without a write, which is published behind", func() bool { return h.status().Drafts.States == (status.DraftStates{}) })
		e.sameTree(o, p.name, local, h.dir)
	}
	var want []string
	e.must(filepath.WalkDir(local, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			key, _ := filepath.Rel(local, path)
			want = append(want, key)
		}
		return err
	}), "walk")
	slices.Sort(want)
	if got := e.keys(o); !slices.Equal(got, want) {
		e.Errorf("the bucket has %q, and a local file system %q", got, want)
	}
	if s := h.status().Drafts; s.Failures > 0 {
		e.Errorf("drafts: %+v", s)
	}
	e.noStagedNames(log)
	e.shows("%d programs, %d files", ran, len(want))
	h.quit()
}

// programsAreThere ends the scenario if a program is missing.
func (e *env) programsAreThere() {
	e.Helper()
	var missing []string
	for _, p := range debianPrograms {
		for need := range strings.FieldsSeq(p.needs) {
			var err error
			if module, ok := strings.CutPrefix(need, "python3:"); ok {
				err = exec.CommandContext(e.ctx, "/usr/bin/python3", "-c", "import importlib.util, sys; sys.exit(importlib.util.find_spec('"+module+"') is None)").Run()
			} else {
				err = exec.CommandContext(e.ctx, "sh", "-c", "PATH=$PATH:/usr/sbin command -v -- \"$0\"", need).Run()
			}
			if err != nil {
				missing = append(missing, need)
			}
		}
	}
	if len(missing) > 0 {
		e.Fatalf("not installed: %s: run scripts/setup --full", strings.Join(missing, " "))
	}
}

// sourceTree makes the files that programs begin with, and a repository of them with some commits.
func (e *env) sourceTree(dir, repo string) {
	e.Helper()
	sizes := map[string]int{"large": 4_000_000, "empty": 0, "d1/exact": 128 << 10, "d1/d 3/a name with blanks": 5000, "d1/ünïcode": 77}
	for i := range 12 {
		for _, d := range []string{"d1", "d2"} {
			sizes[fmt.Sprintf("%s/f%d", d, i)] = i * i * 700
		}
	}
	for name, size := range sizes {
		data := make([]byte, size)
		hearthtest.Fill(data, name, 0, 0)
		path := filepath.Join(dir, name)
		e.must(os.MkdirAll(filepath.Dir(path), 0o755), "make a directory")
		e.must(os.WriteFile(path, data, 0o644), "write a file")
	}
	var text strings.Builder
	for i := range 400 {
		fmt.Fprintf(&text, "line %d, and what follows it\n", i)
	}
	e.must(os.WriteFile(filepath.Join(dir, "text"), []byte(text.String()), 0o644), "write a text")
	e.bash(dir, `find . -exec touch -h -d 2026-01-01T00:00:00Z {} +; umask 022; cp -r . "$0"; cd "$0"; git init -q; git add -A; git commit -q -m first
for i in $(seq 15); do echo $i >> text; echo $i > d2/new$i; git add -A; git commit -q -m "commit $i"; done; git repack -q -d; echo more >> text; git commit -q -a -m last`, repo)
}

// does runs a program in a directory of its own below dir, and returns what it printed and its exit code.
func (e *env) does(p *program, dir, source, repo string) string {
	e.Helper()
	dir = filepath.Join(dir, p.name)
	e.must(os.Mkdir(dir, 0o755), "make a directory")
	return e.bash(dir, p.does, "bash", source, repo)
}

// bash runs a script in a directory, and returns what it printed and its exit code. Names of the directory are left out.
func (e *env) bash(dir, script string, args ...string) string {
	e.Helper()
	cmd := exec.CommandContext(e.ctx, "bash", append([]string{"-c", script}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(e.environ(nil), "PATH="+os.Getenv("PATH")+":/usr/sbin", "LC_ALL=C", "TZ=UTC", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@a",
		"GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@a", "GIT_AUTHOR_DATE=2026-01-01T00:00:00Z", "GIT_COMMITTER_DATE=2026-01-01T00:00:00Z", "GIT_MERGE_AUTOEDIT=no")
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		e.Fatalf("run a shell: %v", err)
	}
	return fmt.Sprintf("%sexit code %d", strings.ReplaceAll(string(out), dir, "DIR"), cmd.ProcessState.ExitCode())
}

// sameTree compares what a program left on a local file system with what the mount shows and what the bucket has.
func (e *env) sameTree(o *server, name, local, mount string) {
	e.Helper()
	names := func(root string) (all []string) {
		e.must(filepath.WalkDir(filepath.Join(root, name), func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			key, _ := filepath.Rel(root, path)
			info, err := d.Info()
			switch {
			case err == nil && d.IsDir():
				all = append(all, key+"/")
			case err == nil:
				all = append(all, fmt.Sprintf("%s %v %d", key, d.Type(), info.Size()))
			}
			return err
		}), "walk %s", root)
		return all
	}
	theirs, ours := names(local), names(mount)
	if !slices.Equal(theirs, ours) {
		e.Errorf("%s leaves %q on the mount, and %q on a local file system", name, ours, theirs)
		return
	}
	for _, line := range theirs {
		if strings.HasSuffix(line, "/") {
			continue
		}
		fields := strings.Split(line, " ")
		key := strings.Join(fields[:len(fields)-2], " ")
		text, err := os.ReadFile(filepath.Join(local, key))
		e.must(err, "read %s", key)
		if got := e.object(o, key); string(got) != string(text) {
			e.Errorf("%s has %d bytes in the bucket, and %d on a local file system, or others", key, len(got), len(text))
		}
	}
}

// noStagedNames reads the bucket's log of requests: no name that a pattern keeps out of the bucket was ever written to it.
func (e *env) noStagedNames(log string) {
	e.Helper()
	patterns, err := draft.ParseTemporary(draft.DefaultTemporary())
	e.must(err, "parse the patterns")
	text, err := os.ReadFile(log)
	e.must(err, "read the bucket's log")
	writes := 0
	for _, m := range regexp.MustCompile(` s3_(?:PutObject|CopyObject|CreateMultipartUpload) .* /([^ /]+)/([^ ?]*)\S* \d+ `).FindAllStringSubmatch(string(text), -1) {
		key, err := url.PathUnescape(m[2])
		e.must(err, "read %s", m[0])
		writes++
		if staged, _ := patterns.Match(key); staged {
			e.Errorf("a temporary name was in the bucket: %s", m[0])
		}
	}
	if writes == 0 {
		e.Errorf("the bucket's log has no writes: %.300s", text)
	}
}
