package main

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/hearthfs/hearth/cmd/hearth/settings"
	"github.com/hearthfs/hearth/node/budget"
	"github.com/hearthfs/hearth/node/machine"
)

// manifest is what the tests look at in a Kubernetes object; what it does not name is passed over.
type manifest struct {
	Kind     string
	Metadata struct{ Name, Namespace string }
	Data     map[string]string
	Spec     struct {
		pod      `yaml:",inline"`
		Template struct{ Spec pod }
	}
}

type pod struct {
	TerminationGracePeriodSeconds int `yaml:"terminationGracePeriodSeconds"`
	Containers                    []struct {
		Command         []string
		SecurityContext struct{ Privileged bool } `yaml:"securityContext"`
		Ports           []struct {
			ContainerPort int `yaml:"containerPort"`
		}
		LivenessProbe  probe `yaml:"livenessProbe"`
		ReadinessProbe probe `yaml:"readinessProbe"`
		Resources      struct{ Limits map[string]string }
		VolumeMounts   []struct {
			Name             string
			MountPath        string `yaml:"mountPath"`
			MountPropagation string `yaml:"mountPropagation"`
		} `yaml:"volumeMounts"`
	}
	Volumes []volume
}

type volume struct {
	Name      string
	HostPath  struct{ Path string } `yaml:"hostPath"`
	ConfigMap struct{ Name string } `yaml:"configMap"`
}

type probe struct {
	HTTPGet struct {
		Path string
		Port int
	} `yaml:"httpGet"`
}

// manifests reads all objects of a file in deploy/kubernetes, by kind.
func manifests(t *testing.T, name string) map[string]manifest {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "deploy", "kubernetes", name))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]manifest{}
	for d := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var m manifest
		if err := d.Decode(&m); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		all[m.Kind] = m
	}
}

func TestKubernetesExample(t *testing.T) {
	// The daemonset's command, configuration, probes and volumes are what this binary takes and what a mount that other pods see needs.
	all := manifests(t, "daemonset.yaml")
	p := all["DaemonSet"].Spec.Template.Spec
	c := p.Containers[0]
	cmd, args, err := rootCommand().Find(c.Command[1:])
	if err != nil || c.Command[0] != "hearth" || cmd.Name() != "up" {
		t.Fatalf("%v runs %s, %v", c.Command, cmd.Name(), err)
	}
	if err := errors.Join(cmd.ParseFlags(args), cmd.ValidateArgs(cmd.Flags().Args())); err != nil {
		t.Errorf("%v: %v", c.Command, err)
	}
	file := cmd.Flag("config").Value.String()
	s := &settings.Settings{}
	if err := settings.ReadYAML(s, "hearth.yaml", []byte(all["ConfigMap"].Data[filepath.Base(file)])); err != nil {
		t.Fatal(err)
	}
	config, err := nodeConfig(s, "")
	if err == nil {
		err = config.Validate()
	}
	if err != nil {
		t.Fatal(err)
	}
	checkVolumes(t, p, map[string]string{filepath.Dir(file): "config", config.Cache.Disks[0].Path: "cache", filepath.Dir(config.Mounts[0].Dir): "volume"})
	if !c.SecurityContext.Privileged {
		t.Error("Bidirectional is refused to what is not privileged")
	}
	_, port, err := net.SplitHostPort(config.Admin.Listen)
	for _, x := range []int{c.Ports[0].ContainerPort, c.LivenessProbe.HTTPGet.Port, c.ReadinessProbe.HTTPGet.Port} {
		if strconv.Itoa(x) != port || err != nil {
			t.Errorf("port %d, the node listens at %s", x, config.Admin.Listen)
		}
	}
	if c.LivenessProbe.HTTPGet.Path != "/metrics" || c.ReadinessProbe.HTTPGet.Path != "/healthz" {
		t.Errorf("probes %+v, %+v", c.LivenessProbe, c.ReadinessProbe)
	}
	limit, err := settings.ParseBytes(c.Resources.Limits["memory"] + "B")
	if err != nil {
		t.Fatal(err)
	}
	l := machine.Limits{Memory: limit}
	if ram, err := budget.RAM(config.Cache.RAM, l); err != nil || budget.Tight(ram, l) != "" {
		t.Errorf("cache.ram within the limit: %v %s", err, budget.Tight(ram, l))
	}

	reader := manifests(t, "reader.yaml")["Pod"].Spec.pod
	m := reader.Containers[0].VolumeMounts[0]
	if m.MountPropagation != "HostToContainer" || reader.Volumes[0].HostPath.Path != filepath.Dir(config.Mounts[0].Dir) {
		t.Errorf("the reader's volume: %+v of %+v", m, reader.Volumes[0])
	}
	seen := filepath.Join(m.MountPath, filepath.Base(config.Mounts[0].Dir))
	if !slices.ContainsFunc(reader.Containers[0].Command, func(s string) bool { return strings.Contains(s, seen) }) {
		t.Errorf("the reader reads %v, not %s", reader.Containers[0].Command, seen)
	}
}

// checkVolumes holds which volume is mounted at each path: one of the same path on
// the machine, but for the configuration. What is shared stands above the mount point.
func checkVolumes(t *testing.T, p pod, want map[string]string) {
	t.Helper()
	for _, m := range p.Containers[0].VolumeMounts {
		i := slices.IndexFunc(p.Volumes, func(v volume) bool { return v.Name == m.Name })
		if i < 0 {
			t.Errorf("there is no volume %s", m.Name)
			continue
		}
		if host := p.Volumes[i].HostPath.Path; host != m.MountPath && p.Volumes[i].ConfigMap.Name == "" {
			t.Errorf("%s of the machine stands at %s", host, m.MountPath)
		}
		if (m.MountPropagation == "Bidirectional") != (m.Name == "volume") {
			t.Errorf("propagation of %s is %q", m.Name, m.MountPropagation)
		}
		if want[m.MountPath] == m.Name {
			delete(want, m.MountPath)
		}
	}
	if len(want) > 0 {
		t.Errorf("not mounted: %v", want)
	}
}
