package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"github.com/hearthfs/hearth/cache/disk"
	"github.com/hearthfs/hearth/node/machine"
)

const elsewhere = "choose another directory with --cache-disks PATH=SIZE"

func (d *directory) say(check string, v Verdict, found, cure string) Finding {
	subject := d.path
	if subject == "" {
		subject = d.disk.Path
	}
	return Finding{check, subject, v, strings.TrimPrefix(found, "cache directory "+subject+" "), cure}
}

// judgeGround says whether a cache may lie there at all.
func (d *directory) judgeGround() []Finding {
	const check = "cache directory"
	switch {
	case errors.Is(d.failed, machine.ErrInFuse):
		return []Finding{d.say(check, Fail, machine.ErrInFuse.Error(), "choose one on a local disk with --cache-disks PATH=SIZE")}
	case d.failed != nil:
		found, cure := apart(d.failed.Error(), "; ")
		if cure == "" {
			cure = elsewhere + ", or let this user go there"
		}
		return []Finding{d.say(check, Fail, found, cure)}
	}
	found := fmt.Sprintf("on %s, owned by user %d", d.place.FileSystem, d.owner)
	if d.at != d.path {
		return []Finding{d.say(check, OK, fmt.Sprintf("does not exist, and can be made in %s on %s", d.at, d.place.FileSystem), "")}
	}
	if d.mode.Perm()&0o022 != 0 {
		return []Finding{d.say(check, Warn, found+", and others may write there", "chmod go-w "+d.path)}
	}
	if d.owner != d.uid {
		return []Finding{d.say(check, Warn, fmt.Sprintf("%s, not by user %d, who looks", found, d.uid),
			fmt.Sprintf("run hearth as user %d, or choose a directory of this user's own with --cache-disks PATH=SIZE", d.owner))}
	}
	return []Finding{d.say(check, OK, found, "")}
}

// judgeContent says whose the directory is, and what to know about its file system.
func (d *directory) judgeContent() (all []Finding) {
	const check = "cache content"
	switch {
	case d.blind != nil:
		return []Finding{d.say(check, Fail, "cannot be looked at: "+reason(d.blind), elsewhere+", or let this user read it")}
	case d.foreign != "":
		return []Finding{d.say(check, Fail, fmt.Sprintf("is not empty and not hearth's (it holds %q)", d.foreign), "choose another, or empty it")}
	case d.format > disk.LabelFormat:
		return []Finding{d.say(check, Fail, fmt.Sprintf("has format %d, this version of hearth knows %d", d.format, disk.LabelFormat), "run the newer hearth, or "+elsewhere)}
	case d.locked && d.node != nil && strconv.Itoa(d.node.PID) == d.holder.PID:
		all = append(all, d.say(check, OK, "in use by the node, process "+d.holder.PID, ""))
	case d.locked && d.holder.Defunct():
		all = append(all, d.say(check, Fail, "in use by process "+d.holder.PID+", which was killed and cannot end while a reader waits for its mount", "run umount -f on that, as root"))
	case d.locked:
		all = append(all, d.say(check, Fail, "in use by process "+d.holder.PID, "stop that one, or give this one a directory of its own with --cache-disks PATH=SIZE"))
	}
	if d.Note != "" {
		found, cure := apart(d.Note, "; ")
		all = append(all, d.say("cache file system", Warn, found, cure))
	}
	if d.place.FileSystem == "nfs" {
		all = append(all, d.say("cache file system", Warn, "lies on NFS: a cache on another machine is one more origin", "choose a directory on a local disk with --cache-disks PATH=SIZE"))
	}
	return all
}

// fewInodes is where a file system is as good as full: names alone take dozens of inodes.
const fewInodes = 1000

// judgeSpace compares the budget with the free space.
func (d *directory) judgeSpace() Finding {
	const check = "cache space"
	now := machine.Room{Path: d.path, Budget: d.Budget, Floor: d.Floor, Limit: min(d.Budget, max(d.used+d.place.Free-d.Floor, 0))}
	found := fmt.Sprintf("holds up to %s, %s now; %s of %s are free, %s stay so",
		machine.SizeText(now.Limit), machine.SizeText(d.used), machine.SizeText(d.place.Free), machine.SizeText(d.place.Whole), machine.SizeText(d.Floor))
	if lack := now.Lack(); lack != "" {
		found, cure := apart(lack, "stay free; ")
		return d.say(check, Fail, found+"stay free", cure)
	}
	switch {
	case d.place.Inodes >= 0 && d.place.Inodes < fewInodes:
		return d.say(check, Warn, fmt.Sprintf("%d inodes are free", d.place.Inodes), "remove small files there, or "+elsewhere)
	case now.Limit < now.Budget:
		return d.say(check, Warn, fmt.Sprintf("%s, of a budget of %s", found, machine.SizeText(now.Budget)),
			"make room there, lower its size (--cache-disks PATH=SIZE), or lower --cache-free-floor")
	}
	return d.say(check, OK, found, "")
}

// slow is what a device should do at least, in bytes/s. A rotating disk does twice that. So does a network
// of a gigabit, which the cache is to save us from.
const slow = 50e6

// judgeDevice says how well files can be written and read there.
func (d *directory) judgeDevice() (all []Finding) {
	const check = "cache device"
	if d.broken != nil {
		return []Finding{d.say(check, Fail, "a file cannot be written and read: "+reason(d.broken), "look at the device (dmesg) and its free space, or "+elsewhere)}
	}
	speed := fmt.Sprintf("%s written at %.0f MB/s, read at %.0f MB/s", machine.SizeText(d.written), d.writeRate/1e6, d.readRate/1e6)
	if min(d.writeRate, d.readRate) < slow {
		all = append(all, d.say(check, Warn, speed, "a local SSD is meant: "+elsewhere+", unless this is a moment's load"))
	} else {
		all = append(all, d.say(check, OK, speed, ""))
	}
	if !d.direct {
		all = append(all, d.say(check, Warn, "no O_DIRECT: what is cached passes through the page cache as well", "choose a directory on ext4 or XFS, where reads are many"))
	}
	if !d.punch {
		all = append(all, d.say(check, Warn, "no holes can be punched: what was evicted takes room until its file is rewritten", "choose a directory on ext4 or XFS, where the cache is full"))
	}
	return all
}

// reason returns an error without the path, which the finding names already.
func reason(err error) string {
	var in *fs.PathError
	if errors.As(err, &in) {
		return in.Err.Error()
	}
	var link *os.LinkError
	if errors.As(err, &link) {
		return link.Err.Error()
	}
	return err.Error()
}
