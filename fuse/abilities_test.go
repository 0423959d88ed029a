package fuse

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"

	"github.com/hearthfs/hearth"
)

func TestWhatAMountLacksHasAReason(t *testing.T) {
	// Status names what a mount does without: what was masked, what the kernel does not offer, what it refuses; not what the mount would not use anyway.
	const everything = ^uint64(0)
	none := error(nil)
	for name, c := range map[string]struct {
		o                 Options
		offered, unwanted uint64
		refused           error
		ahead             int
		want              []string
	}{
		"nothing":            {Options{}, everything, 0, none, 1024, nil},
		"an older kernel":    {Options{}, everything &^ gofuse.CAP_NO_OPENDIR_SUPPORT, 0, none, 1024, []string{"opendir: the kernel does not offer it"}},
		"masked":             {Options{Without: []string{"readdirplus"}}, everything, 0, none, 1024, []string{"readdirplus: masked by fuse.without"}},
		"not wanted":         {Options{}, 0, gofuse.CAP_PASSTHROUGH | everything&^gofuse.CAP_NO_OPEN_SUPPORT, none, 1024, []string{"open: the kernel does not offer it"}},
		"refused":            {Options{}, everything, 0, syscall.EPERM, 1024, []string{"passthrough: operation not permitted"}},
		"no right to /sys":   {Options{}, everything, 0, none, 128, []string{"readahead: 128 KiB instead of 1024: only root may raise it, where /sys can be written"}},
		"masked read-ahead":  {Options{Without: []string{"readahead"}}, everything, 0, none, 0, []string{"readahead: masked by fuse.without"}},
		"masked, not wanted": {Options{Without: []string{"passthrough"}}, everything, gofuse.CAP_PASSTHROUGH, none, 1024, []string{"passthrough: masked by fuse.without"}},
	} {
		c.o.MaxReadAhead = hearth.BlockSize
		if got := c.o.lacks(c.offered, c.unwanted, c.refused, c.ahead); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// sampled knows where its files lie.
type sampled struct {
	LocalFiler
	names []string
}

func (s sampled) Samples() []string { return s.names }

// refusing is a kernel that takes no empty files.
type refusing struct{ errno syscall.Errno }

func (k *refusing) RegisterBackingFd(m *gofuse.BackingMap) (int32, syscall.Errno) {
	var st syscall.Stat_t
	if err := syscall.Fstat(int(m.Fd), &st); err == nil && st.Size > 0 {
		return 1, 0
	}
	return 0, k.errno
}

func (k *refusing) UnregisterBackingFd(int32) syscall.Errno { return 0 }

func TestPassthroughIsTriedWhereTheFilesLie(t *testing.T) {
	// Passthrough is granted where the kernel takes a file of one of the places; the reason for all that are refused names the place.
	dir := t.TempDir()
	taken, not := filepath.Join(dir, "taken"), filepath.Join(dir, "not", "f")
	if err := os.Mkdir(filepath.Dir(not), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{taken: "x", not: ""} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		local   LocalFiler
		offered uint64
		errno   syscall.Errno
		want    string
	}{
		{sampled{names: []string{not, taken}}, gofuse.CAP_PASSTHROUGH, syscall.ELOOP, ""},
		{sampled{names: []string{not}}, gofuse.CAP_PASSTHROUGH, syscall.ELOOP, "stacked file system such as overlayfs, on which " + filepath.Dir(not) + " lies: mount a volume there"},
		{sampled{names: []string{not}}, gofuse.CAP_PASSTHROUGH, syscall.EPERM, "it needs CAP_SYS_ADMIN"},
		{sampled{}, gofuse.CAP_PASSTHROUGH, syscall.EPERM, "it needs CAP_SYS_ADMIN"},
		{sampled{names: []string{taken}}, 0, 0, "the kernel does not offer it"},
		{nil, gofuse.CAP_PASSTHROUGH, 0, "no local tier"},
		{sampled{names: []string{filepath.Join(dir, "nothing")}}, gofuse.CAP_PASSTHROUGH, 0, "no such file"},
	} {
		err := passthroughGranted(&refusing{errno: c.errno}, c.offered, &Options{Local: c.local})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c, err, c.want)
		}
	}
}

func TestErrorsOfMountingNameTheCure(t *testing.T) {
	// Each way in which a machine or a container keeps us from mounting has its own cure.
	for _, c := range []struct {
		err  error
		want string
	}{
		{noDevice(syscall.ENOENT), "modprobe fuse; a container needs --device /dev/fuse --cap-add SYS_ADMIN"},
		{noDevice(syscall.EPERM), "give it --device /dev/fuse --cap-add SYS_ADMIN"},
		{noDevice(syscall.EACCES), "chmod 666 /dev/fuse"},
		{notAllowed(syscall.EPERM), "a container needs --cap-add SYS_ADMIN"},
		{notAllowed(syscall.EACCES), "a container needs --security-opt apparmor=unconfined"},
		{notAllowed(syscall.EINVAL), "invalid argument"},
	} {
		if !strings.Contains(c.err.Error(), c.want) {
			t.Errorf("%v, want %q", c.err, c.want)
		}
	}
}
