package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
	"github.com/hearthfs/hearth/cmd/hearth/settings"
	"github.com/hearthfs/hearth/node/config"
	"github.com/hearthfs/hearth/node/machine"
)

// manifest has the fields of a Kubernetes object that the tests check. Others are passed over.
type manifest struct {
	Kind     string
	Metadata struct{ Name, Namespace string }
	Data     map[string]string
	Spec     struct {
		pod              `yaml:",inline"`
		Template         struct{ Spec pod }
		PodFailurePolicy struct {
			Rules []struct {
				Action      string
				OnExitCodes struct {
					ContainerName string `yaml:"containerName"`
					Operator      string
					Values        []int
				} `yaml:"onExitCodes"`
			}
		} `yaml:"podFailurePolicy"`
	}
}

type pod struct {
	TerminationGracePeriodSeconds int         `yaml:"terminationGracePeriodSeconds"`
	InitContainers                []container `yaml:"initContainers"`
	Containers                    []container
	Volumes                       []podVolume
}

type container struct {
	Name            string
	Command         []string
	SecurityContext struct {
		Privileged bool
		RunAsUser  *int `yaml:"runAsUser"`
	} `yaml:"securityContext"`
	Ports []struct {
		ContainerPort int `yaml:"containerPort"`
	}
	LivenessProbe  probe `yaml:"livenessProbe"`
	ReadinessProbe probe `yaml:"readinessProbe"`
	Resources      struct{ Limits map[string]string }
	VolumeMounts   []volumeMount `yaml:"volumeMounts"`
}

type volumeMount struct {
	Name             string
	MountPath        string `yaml:"mountPath"`
	MountPropagation string `yaml:"mountPropagation"`
	ReadOnly         bool   `yaml:"readOnly"`
}

type podVolume struct {
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
	// The binary takes the daemonset's command, configuration, probes and volumes. They fit a mount
	// that other pods see.
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
	checkVolumes(t, p, map[string]string{filepath.Dir(file): "config", config.Cache.Disks[0].Path: "cache", filepath.Dir(config.Mounts[0].Dir): "volume", "/run/hearth": "socket"})
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
	if ram, err := machine.RAM(config.Cache.RAM, l); err != nil || machine.Tight(ram, l) != "" {
		t.Errorf("cache.ram within the limit: %v %s", err, machine.Tight(ram, l))
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

func TestKubernetesJob(t *testing.T) {
	// The job's init container is a warm-up that this binary takes. It asks the node of
	// daemonset.yaml at its socket as root, and fails the job on exit codes that a retry does not
	// change. The job reads what it loaded.
	set := manifests(t, "daemonset.yaml")["DaemonSet"].Spec.Template.Spec
	job := manifests(t, "job.yaml")["Job"].Spec
	warm, reader := job.Template.Spec.InitContainers[0], job.Template.Spec.Containers[0]
	cmd, args, err := rootCommand().Find(warm.Command[1:])
	if err != nil || warm.Command[0] != "hearth" || cmd.Name() != "warmup" {
		t.Fatalf("%v runs %s, %v", warm.Command, cmd.Name(), err)
	}
	if err := errors.Join(cmd.ParseFlags(args), cmd.ValidateArgs(cmd.Flags().Args())); err != nil || cmd.Flags().NArg() != 1 {
		t.Errorf("%v: %d paths, %v", warm.Command, cmd.Flags().NArg(), err)
	}
	socket := func(p pod, mounts []volumeMount) (host, in string) {
		for _, m := range mounts {
			i := slices.IndexFunc(p.Volumes, func(v podVolume) bool { return v.Name == m.Name })
			if m.Name == "socket" && i >= 0 {
				return p.Volumes[i].HostPath.Path, m.MountPath
			}
		}
		return "", ""
	}
	for what, c := range map[string]struct {
		pod    pod
		mounts []volumeMount
	}{"node": {set, set.Containers[0].VolumeMounts}, "job": {job.Template.Spec, warm.VolumeMounts}} {
		if host, in := socket(c.pod, c.mounts); host != "/run/hearth" || in != "/run/hearth" { // root's socket, see hearth.yaml(5)
			t.Errorf("the socket of the %s: %s of the machine at %s", what, host, in)
		}
	}
	if u := warm.SecurityContext.RunAsUser; u == nil || *u != 0 {
		t.Error("the init container is not root's")
	}
	rule := job.PodFailurePolicy.Rules[0]
	if on := rule.OnExitCodes; rule.Action != "FailJob" || on.ContainerName != warm.Name || on.Operator != "In" ||
		!slices.Equal(on.Values, []int{cli.ExitUsage, cli.ExitPartly, cli.ExitNotFound, cli.ExitRefused}) {
		t.Errorf("the job fails on %+v", rule)
	}
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "recipes", "kubernetes.md"))
	whole, unread := os.ReadFile(filepath.Join("..", "..", "deploy", "kubernetes", "job.yaml"))
	_, shown, _ := strings.Cut(string(page), "```yaml\n")
	shown, _, _ = strings.Cut(shown, "```")
	for line := range strings.Lines(shown) {
		if !strings.Contains(string(whole), " "+strings.TrimSpace(line)+"\n") {
			t.Errorf("the page shows %q, which job.yaml does not have", line)
		}
	}
	if err := errors.Join(err, unread); err != nil || strings.Count(shown, "\n") < 5 {
		t.Errorf("the page shows %q: %v", shown, err)
	}
	volume := reader.VolumeMounts[0]
	reads := filepath.Join(volume.MountPath, "data", cmd.Flags().Arg(0))
	if volume.MountPropagation != "HostToContainer" || !strings.Contains(strings.Join(reader.Command, " "), reads+" ") {
		t.Errorf("%v does not read %s, propagation %q", reader.Command, reads, volume.MountPropagation)
	}
}

func TestKubernetesRing(t *testing.T) {
	// The patch gives the daemonset's container variables that this binary takes, and joins by the
	// Service's name. The Service leads to the daemonset's pods, ready or not, at the ports where a
	// node listens.
	set := manifests(t, "daemonset.yaml")["DaemonSet"]
	service := struct {
		Metadata struct{ Name, Namespace string }
		Spec     struct {
			ClusterIP                string `yaml:"clusterIP"`
			PublishNotReadyAddresses bool   `yaml:"publishNotReadyAddresses"`
			Selector                 map[string]string
			Ports                    []struct {
				Port     int
				Protocol string
			}
		}
	}{}
	patch := struct {
		Spec struct {
			Template struct {
				Spec struct {
					Containers []struct {
						Name string
						Env  []struct {
							Name, Value string
							ValueFrom   map[string]map[string]string `yaml:"valueFrom"`
						}
						Ports []struct {
							ContainerPort int `yaml:"containerPort"`
							Protocol      string
						}
					}
				}
			}
		}
	}{}
	for name, to := range map[string]any{"ring.yaml": &service, "ring-patch.yaml": &patch} {
		text, err := os.ReadFile(filepath.Join("..", "..", "deploy", "kubernetes", name))
		if err == nil {
			err = yaml.Unmarshal(text, to)
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	s, c := service.Spec, patch.Spec.Template.Spec.Containers[0]
	if s.ClusterIP != "None" || !s.PublishNotReadyAddresses || s.Selector["app"] != "hearth" || service.Metadata.Namespace != set.Metadata.Namespace || c.Name != set.Spec.Template.Spec.Containers[0].Name {
		t.Errorf("service %+v, container %s", service, c.Name)
	}
	for i, want := range []string{"7946 TCP", "7946 UDP", "7947 TCP"} {
		if got, at := s.Ports[i], c.Ports[i]; fmt.Sprint(got.Port, " ", got.Protocol) != want || fmt.Sprint(at.ContainerPort, " ", at.Protocol) != want {
			t.Errorf("ports %+v and %+v, want %s", got, at, want)
		}
	}
	for _, v := range c.Env {
		known := v.Name == config.KeyVariable && v.ValueFrom["secretKeyRef"]["name"] != ""
		for _, p := range settings.Params() {
			known = known || p.Variable() == v.Name
		}
		if !known {
			t.Errorf("%s is no variable of hearth's", v.Name)
		}
		if host := service.Metadata.Name + "." + service.Metadata.Namespace + ".svc"; v.Name == "HEARTH_JOIN" && v.Value != host {
			t.Errorf("it joins %s, not %s", v.Value, host)
		}
	}
	if len(c.Env) != 4 {
		t.Errorf("%d variables", len(c.Env))
	}
}

// checkVolumes checks which volume is mounted at each path: one of the same path on the machine,
// except for the configuration. A shared volume stands above the mount point.
func checkVolumes(t *testing.T, p pod, want map[string]string) {
	t.Helper()
	for _, m := range p.Containers[0].VolumeMounts {
		i := slices.IndexFunc(p.Volumes, func(v podVolume) bool { return v.Name == m.Name })
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
