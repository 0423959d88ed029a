package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hearthfs/hearth/internal/fakenvmet"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/node/doctor"
	"github.com/hearthfs/hearth/volume"
)

// says runs a verb and compares its exit code, and parts of what it prints: each of want, separated by " | ".
func (h *hearth) says(t *testing.T, args string, code int, want string) (stdout string) {
	t.Helper()
	stdout, stderr, got := h.run(strings.Fields(args)...)
	all := stdout + stderr
	for part := range strings.SplitSeq(want, " | ") {
		if !strings.Contains(all, part) {
			t.Errorf("hearth %s: no %q in\n%s", args, part, all)
		}
	}
	if got != code || code != 0 && code != 6 && strings.Count(stderr, "\n") != 1 {
		t.Errorf("hearth %s: exit code %d, want %d\n%s", args, got, code, all)
	}
	return stdout
}

// fill has a node write blocks of 1 to n x 10,000 bytes to a volume, in segments that it closes.
func fill(t *testing.T, address string, with volume.Access, n int) {
	t.Helper()
	a, err := volume.ParseAddress(address)
	if err != nil {
		t.Fatal(err)
	}
	dev, err := a.Open(t.Context(), with)
	if err != nil {
		t.Fatal(err)
	}
	pool := hearthtest.Pool(t, 64<<20)
	known := make(chan struct{}, 1000)
	v, err := volume.Attach(dev, volume.Options{Pool: pool, Cluster: volume.Cluster("hearth", ""), Node: [16]byte{0xab, 0xcd},
		Patience: time.Minute, Changed: func(volume.State) { known <- struct{}{} }})
	if err != nil {
		t.Fatal(err)
	}
	for s := v.State(); s.Learned < s.All; s = v.State() {
		<-known
	}
	for i := range n {
		b := hearthtest.NewObject(fmt.Sprint(i), int64(i+1)*10_000, 1).Block(0)
		view := hearthtest.View(t, pool, b, 1)
		if err := v.Keep(t.Context(), b, view); err != nil {
			t.Error(err)
		}
		view.Release()
	}
	if err := errors.Join(v.Close(), dev.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestVolumeFormat(t *testing.T) {
	// A newcomer makes a volume on a file, in the directory where he stands. Whatever may be a mistake is refused in a
	// line, and leaves what is there as it is: a device that holds something, one that a node has open, nobody to ask.
	h := newHearth(t)
	h.dir = t.TempDir()
	file := filepath.Join(h.dir, "v")
	h.says(t, "volume format v", 4, file+" is not there | --size 10GiB")
	h.says(t, "volume format --size 64MiB --dry-run v", 0, "device   "+file+": a file of 64 MiB, which is made | volume   64 MiB: 15 segments of 4.0 MiB in 15 ranges | cluster  83ca5a29")
	h.says(t, "volume format --size 64MiB v", 8, "nobody can be asked here; --yes")
	h.says(t, "volume format --size 3MiB --yes v", 2, "a volume of 3 MiB with segments of 4 MiB: a segment has 4 MiB to 1 GiB")
	h.says(t, "volume format --size 64MiB --yes --label "+strings.Repeat("x", 33)+" v", 2, "at most 32 bytes")
	h.says(t, "volume format --size lots v", 2, `--size: "lots" is not a size`)
	h.says(t, "volume format --size 64MiB --yes none/v", 4, "the directory of "+h.dir+"/none/v is not there: mkdir -p "+h.dir+"/none")
	h.says(t, "volume format --segment 5000 --size 64MiB --yes v", 2, "steps of 4 KiB")
	h.says(t, "volume format --secret-file x v", 2, "--secret-file is for a namespace")
	h.says(t, "volume format --size 64MiB --yes /dev/none", 2, "a file below /dev lies in memory")
	h.says(t, "volume format --size 64MiB nvme+tcp://h/n", 2, "--size makes a file")
	h.says(t, "volume format --yes http://h/n", 2, "is no volume's address")
	if left, err := os.ReadDir(h.dir); err != nil || len(left) > 0 {
		t.Fatalf("something was made: %v, %v", left, err)
	}
	h.says(t, "volume format --size 64MiB --label mine --yes v", 0, `label "mine" | formatted: volume `)
	if info, err := os.Stat(file); err != nil || info.Size() != 64<<20 || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	h.says(t, "volume format --size 65MiB --yes v", 8, "is there already and has 64 MiB, not 65 MiB")
	h.says(t, "volume format --size 64MiB --yes v", 8, `format `+file+`: the device is not empty: it holds the Hearth volume | "mine"; --force`)
	h.says(t, "volume format --force v", 8, `nobody can be asked`)
	var doc struct {
		Device, Held string
		Formatted    bool
		Volume       struct {
			ID, Label, Cluster string
			Segments           int
			Size               int64
			Segment            int64 `json:"segment_size"`
		}
	}
	out := h.says(t, "volume format --force --dry-run --segment 8MiB -o json v", 0, "")
	if err := json.Unmarshal([]byte(out), &doc); err != nil || doc.Formatted || !strings.Contains(doc.Held, "mine") || doc.Volume.Segments != 7 || doc.Volume.Segment != 8<<20 {
		t.Errorf("%+v, %v", doc, err)
	}
	a, err := volume.ParseAddress(file)
	if err != nil {
		t.Fatal(err)
	}
	open, err := a.Open(t.Context(), volume.Access{})
	if err != nil {
		t.Fatal(err)
	}
	h.says(t, "volume format --force --yes v", 8, "the device is in use: another process has a lock on it | hearth volume detach")
	if info, err := volume.Look(open); err != nil || info.Label != "mine" {
		t.Errorf("%+v, %v", info, err)
	}
	if err := open.Close(); err != nil {
		t.Fatal(err)
	}
	key := writeFile(t, filepath.Join(h.dir, "key"), "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f")
	out = h.says(t, "volume format --force --yes -o json --cluster-name test --cluster-key-file "+key+" v", 0, "")
	want := fmt.Sprintf("%x", volume.Cluster("test", "hkv4-tyof-avwu-kug5"))
	if err := json.Unmarshal([]byte(out), &doc); err != nil || !doc.Formatted || doc.Volume.Cluster != want || doc.Volume.Label != "" {
		t.Errorf("%+v, %v, want the cluster %s", doc, err, want)
	}
	h.says(t, "volume format --yes --force --cluster-key-file /none v", 2, "cluster.key_file: read the cluster key: open /none")
	h.says(t, "volume", 0, "format ")
	h.says(t, "volume list", 5, "hearth up")
	h.says(t, "volume chekc v", 2, "the nearest is check")
	h.says(t, "volume stat", 2, "DEVICE is missing: hearth volume stat DEVICE")
}

func TestVolumeStatAndCheck(t *testing.T) {
	// stat tells what lies on a volume, of which cluster; check finds a flipped bit in a block, which costs that block
	// alone, and in a superblock, which it mends. Neither changes anything else.
	h := newHearth(t)
	file := filepath.Join(t.TempDir(), "v")
	h.says(t, "volume stat "+file, 4, "no such file")
	writeFile(t, file, "hello")
	h.says(t, "volume stat "+file, 4, "look at "+file+": no Hearth volume is there: format it")
	h.says(t, "volume check "+file, 4, "check "+file+": no Hearth volume is there")
	h.says(t, "volume stat -o xml "+file, 2, "not one of table, json, jsonl")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	h.says(t, "volume format --yes --size 32MiB --label mine "+file, 0, "")
	h.says(t, "volume stat "+file, 0, "7 free, 0 closed, 0 open | blocks    0 of 0 B")
	fill(t, file, volume.Access{}, 35)
	h.says(t, "volume stat "+file, 0, `a file of 32 MiB, blocks of 4096 bytes | label "mine", format 1, made 2 | 83ca5a29, that of this configuration | `+
		"7 of 4.0 MiB in 7 ranges: 5 free, 2 closed, 0 open | blocks    35 of 6.0 MiB | generations 1 to 1; segment 0 at | node abcd0000: 2 segments")
	h.says(t, "volume stat --cluster-name other "+file, 0, "83ca5a29, another than that of this configuration (")
	h.says(t, "volume stat --cluster-key-file /none "+file, 0, "83ca5a29, whose, cannot be told: cluster.key_file: ")
	var doc struct {
		Device   map[string]any
		Ours     *bool
		Contents struct {
			Closed, Blocks int
			Writers        []struct{ Node string }
		}
	}
	if err := json.Unmarshal([]byte(h.says(t, "volume stat -o json "+file, 0, `"read_latency_us"`)), &doc); err != nil || doc.Ours == nil || !*doc.Ours ||
		doc.Device["size"] != float64(32<<20) || doc.Contents.Closed != 2 || doc.Contents.Blocks != 35 || doc.Contents.Writers[0].Node != "abcd"+strings.Repeat("0", 28) {
		t.Errorf("%+v, %v", doc, err)
	}
	h.says(t, "volume check "+file, 0, "7 segments: 5 free, 2 closed, 0 open; 35 blocks good, 0 damaged; | 0 bad, 0 repaired")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text[1<<20+5000] ^= 1
	text[20] ^= 1
	writeFile(t, file, string(text))
	h.says(t, "volume stat "+file, 0, "superblock 1 does not verify; hearth volume check --repair writes it anew")
	h.says(t, "volume check "+file, 6, "damaged: "+file+" at 0: superblock 1 does not verify | damaged: "+file+" at 1052672, version | block 0: block does not verify | "+
		"34 blocks good, 1 damaged | 2 bad, 0 repaired")
	var found struct {
		Findings []struct {
			Offset   int64
			Repaired bool
		}
		Summary struct{ Good, Damaged, Bad, Repaired int }
	}
	out := h.says(t, "volume check --repair -o json "+file, 6, "")
	if err := json.Unmarshal([]byte(out), &found); err != nil || len(found.Findings) != 2 || !found.Findings[0].Repaired || found.Summary.Good != 34 ||
		found.Summary.Damaged != 1 || found.Summary.Bad != 2 || found.Summary.Repaired != 1 {
		t.Errorf("%+v, %v", found, err)
	}
	out = h.says(t, "volume check -o jsonl "+file, 6, `{"finding":{"kind":"damaged", | {"done":{"segments":7,`)
	if strings.Count(out, "\n") != 2 {
		t.Errorf("not a line for each:\n%s", out)
	}
	text[20] ^= 1
	if now, err := os.ReadFile(file); err != nil || string(now) != string(text) {
		t.Errorf("the check changed more than the superblock (%v)", err)
	}
}

func TestVolumeOverNVMeTCP(t *testing.T) {
	// The same verbs over NVMe/TCP to a target that wants a secret: without one, with one that others may read, and with
	// it. A bad medium costs the blocks that lie there, stat counts the segment, and format does not take it for data; a
	// protected namespace is not formatted; a target that is gone is said.
	h := newHearth(t)
	const key = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:"
	target, err := fakenvmet.New(fakenvmet.Options{Secret: key})
	if err != nil {
		t.Fatal(err)
	}
	defer target.Close()
	address := volume.Scheme + target.Address() + "/" + target.NQN() + "?queues=2&depth=8&data_digest=on&timeout=30s"
	secret := writeFile(t, filepath.Join(t.TempDir(), "secret"), key+"\n")
	with := " --secret-file " + secret + " " + address
	h.says(t, "volume format --yes "+address, 1, "authentication (DH-HMAC-CHAP)")
	h.says(t, "volume format --yes --label far"+with, 0, "a namespace of 64 MiB, blocks of 4096 bytes | formatted: volume ")
	h.says(t, "volume format --yes"+with, 8, `it holds the Hearth volume | "far"; --force`)
	fill(t, address, volume.Access{Secret: key}, 35)
	out := h.says(t, "volume stat"+with, 0, "path      "+target.Address()+", optimized; 2 queues of depth 8, | header off, data on | 35 of 6.0 MiB | 13 free, 2 closed, 0 open")
	if !regexp.MustCompile(`(?m)^reads +16 of 4 KiB: \S+s, \S+s, \S+s \(least, median, most\)$`).MatchString(out) {
		t.Errorf("no latencies:\n%s", out)
	}
	h.says(t, "volume stat -o json"+with, 0, `"queues": 2, | "data_digest": true`)
	h.says(t, "volume check"+with, 0, "15 segments: 13 free, 2 closed, 0 open; 35 blocks good, 0 damaged")
	target.Namespace(1).Bad(257, 257, fakenvmet.UnrecoveredRead) // the page behind the first header
	h.says(t, "volume check"+with, 6, "it cannot be read: | 34 blocks good, 1 damaged")
	target.Namespace(1).Bad(256, 256, fakenvmet.UnrecoveredRead) // the first header
	h.says(t, "volume stat"+with, 0, "13 free, 1 closed, 0 open | unread    1 segment, whose blocks are not counted: ")
	h.says(t, "volume stat -o json"+with, 0, `"unread": 1,`)
	target.Namespace(1).Bad(0, 0, fakenvmet.UnrecoveredRead)
	h.says(t, "volume format --yes"+with, 8, `it holds the Hearth volume | "far"; --force`) // the other superblock says so
	target.Namespace(1).Bad(16383, 16383, fakenvmet.UnrecoveredRead)
	h.says(t, "volume format --yes"+with, 1, "cannot be read, so that it was not formatted: | try again, or have --force overwrite it unseen")
	h.says(t, "volume format --force --dry-run"+with, 0, "holds    what cannot be read (")
	target.Namespace(1).Good()
	target.Namespace(1).Protect(true)
	h.says(t, "volume format --force --yes"+with, 8, "read-only")
	if err := os.Chmod(secret, 0o644); err != nil {
		t.Fatal(err)
	}
	h.says(t, "volume stat"+with, 1, "chmod 600 "+secret)
	if v := target.Violations(); len(v) > 0 {
		t.Error(v)
	}
	target.Close()
	h.says(t, "volume stat "+address, 1, "reach volume "+address+": | does the target listen there?")
	h.says(t, "volume stat --timeout 1ns "+address, 7, "timed out")
}

func TestVolumesOfANode(t *testing.T) {
	// list, attach and detach ask the node, and say in a line and by the exit code why something does not go: what is
	// not there, is attached already by whatever address, is another cluster's or no volume. A namespace that the node
	// has attached is not formatted, by another address and with --force either; once it is detached it is.
	h := newHearth(t)
	h.dir = t.TempDir()
	target, err := fakenvmet.New(fakenvmet.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer target.Close()
	far := volume.Scheme + target.Address() + "/" + target.NQN()
	file := filepath.Join(h.dir, "v")
	h.says(t, "volume format --size 64MiB --label near --yes v", 0, "formatted")
	h.says(t, "volume format --label far --yes "+far, 0, "formatted")
	h.says(t, "volume format --size 64MiB --cluster-name other --yes w", 0, "formatted")
	if err := os.Symlink(file, filepath.Join(h.dir, "link")); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(h.dir, "empty"), strings.Repeat("\x00", 64<<20))
	h.says(t, "volume attach v", 5, "hearth up")
	h.says(t, "volume detach v", 5, "hearth up")
	h.up(t, h.bucket(t, map[string]string{"a": "hello"}))
	h.says(t, "volume list", 0, "no volumes; ")
	h.says(t, "volume attach none", 4, "open volume "+h.dir+"/none: no such file")
	h.says(t, "volume attach w", 8, "another cluster")
	h.says(t, "volume attach empty", 8, "no Hearth volume is there")
	h.says(t, "volume attach .", 1, "is a directory")
	h.says(t, "volume attach nvme+tcp://h", 2, "names no target")
	h.says(t, "volume attach --secret-file x v", 2, "--secret-file is for a namespace")
	h.says(t, "volume attach --secret-file none "+far, 4, "read the secret of a volume")
	h.says(t, "volume attach v", 0, "near")
	h.says(t, "volume attach v", 8, "it is attached already")
	h.says(t, "volume attach link", 8, "the same volume is attached already")
	h.says(t, "volume attach "+far, 0, "far")
	h.says(t, "volume attach "+far+"?queues=1", 8, "the same volume is attached already")
	h.says(t, "doctor "+far, 2, "is a volume and no origin: hearth volume stat "+far)
	if found, _ := h.examined(t); found["volume "+far].Verdict != doctor.OK || found["volume "+file].Verdict != doctor.OK {
		t.Errorf("doctor does not know the node's volumes: %+v", found)
	}
	h.says(t, "volume list", 0, "near | far | "+file+" | "+far)
	out := h.says(t, "volume list -o jsonl", 0, `"label":"near"`)
	if strings.Count(out, "\n") != 2 {
		t.Errorf("not a line for each:\n%s", out)
	}
	h.says(t, "volume format --force --yes "+far, 8, "the device is in use: this machine's node has it attached; hearth volume detach "+far)
	h.says(t, "volume format --force --dry-run "+far+"?queues=1", 8, "the device is in use: this machine's node has it attached; hearth volume detach "+far)
	h.says(t, "volume format --force --yes v", 8, "the device is in use: this machine's node has it attached")
	h.says(t, "volume detach none", 4, `no volume of this node is "none" | hearth volume list`)
	h.says(t, "volume detach v", 0, file+" is detached")
	h.says(t, "volume detach v", 4, "hearth volume list")
	h.says(t, "volume detach -o json far", 0, `"address": "`+far)
	h.says(t, "volume list", 0, "no volumes; ")
	h.says(t, "volume format --force --yes "+far, 0, "holds    the Hearth volume | formatted")
	if v := target.Violations(); len(v) > 0 {
		t.Error(v)
	}
}

func TestFiveMinutesWithAFile(t *testing.T) {
	// The blocks of docs/volumes.md for a newcomer do what the page says, pasted as they are but for the line that is to
	// be filled in: the cache is lost, and the file is read from the volume.
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "volumes.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, part, _ := strings.Cut(string(page), "## Five minutes with a file")
	part, _, _ = strings.Cut(part, "\n## ")
	h := newHearth(t)
	url, script := h.bucket(t, map[string]string{"f": strings.Repeat("hello", 1000)}), ""
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(part, -1) {
		script += block[1]
	}
	const fill = "ORIGIN=s3://BUCKET/PREFIX FILE=/PATH/OF/A/FILE"
	if strings.Count(script, fill) != 1 {
		t.Fatalf("not one line to fill in:\n%s", script)
	}
	script = strings.ReplaceAll(script, "in 1 2 3 4 5;", "in $(seq 120);") // for a busy machine
	script = strings.Replace(script, fill, "ORIGIN="+url+" FILE=/f", 1) + "\nkill $!; wait $!\n"
	cmd := exec.CommandContext(t.Context(), "bash", "-u", "-c", script)
	cmd.Env = append(h.env, "PATH="+filepath.Dir(h.bin)+":"+os.Getenv("PATH"))
	cmd.Env = slices.DeleteFunc(cmd.Env, func(s string) bool {
		return strings.HasPrefix(s, "HEARTH_CACHE_DISKS=") || strings.HasPrefix(s, "HEARTH_CONFIG=")
	})
	out, err := cmd.CombinedOutput()
	for _, want := range []string{"formatted: volume ", "first ", "in use", "loaded 1 file", "asked    readers 0, 0 B;", "; volume 1, 4.9 KiB;"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %q", want)
		}
	}
	if t.Failed() {
		log, _ := os.ReadFile(filepath.Join(h.home, "hearth-volume", "log"))
		t.Logf("%v\n%s\nlog:\n%s", err, out, log)
	}
}
