package doctor

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hearthfs/hearth/internal/fakenvmet"
	"github.com/hearthfs/hearth/node/config"
	"github.com/hearthfs/hearth/node/status"
	"github.com/hearthfs/hearth/volume"
)

func TestVolumesAreJudged(t *testing.T) {
	// Each fact that keeps a volume from being used, or makes it slow, has its verdict and its cure.
	reads := slices.Repeat([]time.Duration{time.Millisecond}, tries)
	for name, c := range map[string]struct {
		facts   volumeFacts
		verdict Verdict
		says    string
	}{
		"away":          {volumeFacts{opened: errors.New("connection refused")}, Fail, "connection refused"},
		"small":         {volumeFacts{remote: "a:1", most: 64 << 10, reads: reads}, Warn, "64 KiB at most"},
		"empty":         {volumeFacts{looked: volume.ErrNoVolume, reads: reads}, Fail, "not formatted"},
		"newer":         {volumeFacts{looked: volume.ErrNewer, reads: reads}, Fail, "newer version"},
		"foreign":       {volumeFacts{cluster: [16]byte{1}, reads: reads}, Fail, "another cluster"},
		"large sectors": {volumeFacts{block: 8192, reads: reads}, Fail, "8192 bytes"},
		"protected":     {volumeFacts{locked: true, reads: reads}, Warn, "no writes"},
		"bad":           {volumeFacts{read: errors.New("input/output error")}, Fail, "input/output error"},
		"slow":          {volumeFacts{reads: slices.Repeat([]time.Duration{20 * time.Millisecond}, tries)}, Warn, "takes 20ms"},
	} {
		found := c.facts.judge("v")
		if !slices.ContainsFunc(found, func(f Finding) bool {
			return f.Check == "volume" && f.Subject == "v" && f.Verdict == c.verdict && strings.Contains(f.Found, c.says) && f.Cure != ""
		}) {
			t.Errorf("%s: %+v", name, found)
		}
	}
	for _, f := range (volumeFacts{reads: reads}).judge("v") {
		if f.Verdict != OK {
			t.Errorf("all is well: %+v", f)
		}
	}
}

func TestVolumesOfTheNodeAreJudged(t *testing.T) {
	// What a node attached beside the configuration is as the node says. What was looked at is not said twice.
	node := &Running{Volumes: []status.Volume{{Address: "/a", Label: "x", Size: 64 << 20}, {Address: "/b", Away: "it is gone"}, {Address: "/c", Stopped: "it is full"}, {Address: "/d"}}}
	found := node.judgeVolumes([]config.Volume{{URL: "/d"}})
	want := []Finding{{"volume", "/a", OK, `the node has it attached: volume "x" of 64.0 MiB`, ""},
		{"volume", "/b", Fail, "the node does not use it: it is gone", "hearth volume stat /b looks at it"},
		{"volume", "/c", Warn, "the node writes nothing to it: it is full", "hearth volume stat /c looks at it"}}
	if !slices.Equal(found, want) {
		t.Errorf("%+v", found)
	}
	if found := (*Running)(nil).judgeVolumes(nil); found != nil {
		t.Errorf("no node: %+v", found)
	}
}

func TestALookAtVolumes(t *testing.T) {
	// A formatted file and a namespace of a target are found well, with what was negotiated. A file that is not there
	// is not.
	target, err := fakenvmet.New(fakenvmet.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(target.Close)
	file := filepath.Join(t.TempDir(), "v")
	if err := os.WriteFile(file, make([]byte, 32<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	cluster, err := config.ClusterID(config.Membership{})
	if err != nil {
		t.Fatal(err)
	}
	tcp := volume.Scheme + target.Address() + "/" + target.NQN() + "?data_digest=on&queues=2"
	for url, want := range map[string]string{file: `volume "" of`, tcp: "2 queues of 64 commands, data digest"} {
		address, err := volume.ParseAddress(url)
		if err != nil {
			t.Fatal(err)
		}
		dev, err := address.Open(t.Context(), volume.Access{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := volume.MakeVolume(dev, volume.FormatOptions{Cluster: cluster}); err != nil {
			t.Fatal(err)
		}
		if err := dev.Close(); err != nil {
			t.Fatal(err)
		}
		var all []Finding
		shared{Volume: config.Volume{URL: url}}.look(t.Context(), func(f ...Finding) { all = append(all, f...) })
		if slices.ContainsFunc(all, func(f Finding) bool { return f.Verdict != OK }) || !slices.ContainsFunc(all, func(f Finding) bool { return strings.Contains(f.Found, want) }) {
			t.Errorf("%s: %+v", url, all)
		}
	}
	if f := (shared{Volume: config.Volume{URL: file + "x"}}).facts(t.Context()); !errors.Is(f.opened, os.ErrNotExist) {
		t.Errorf("%v", f.opened)
	}
}
