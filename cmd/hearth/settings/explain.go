package settings

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
)

// Explained is everything that the table says about a key.
type Explained struct {
	Key  string `json:"key"`
	Type string `json:"type"`
	// Unit is how a figure is read. "" means that the key is no figure.
	Unit        string `json:"unit,omitempty"`
	Default     string `json:"default"`
	Help        string `json:"help"`
	Flag        string `json:"flag,omitempty"`
	Environment string `json:"environment,omitempty"`
	// File says that the key may stand in the file.
	File bool `json:"file"`
	// Restart says that a change takes effect at the node's next start.
	Restart bool   `json:"restart"`
	Example string `json:"example"`
}

// Explain finds a key of the table by its name, or by that of its flag or variable. The name of a
// group stands for all its keys.
func Explain(name string) ([]Explained, error) {
	key := regexp.MustCompile(`\[\d+\]`).ReplaceAllString(name, "[]")
	var all []Explained
	var names []string
	for _, p := range Params() {
		names = append(names, p.Key)
		switch {
		case key == p.Key, key == p.Variable(), p.Flag != "" && strings.TrimPrefix(key, "--") == p.Flag:
			return []Explained{p.explained()}, nil
		case strings.HasPrefix(p.Key, key+"."), strings.HasPrefix(p.Key, key+"[]"):
			all = append(all, p.explained())
		}
	}
	if len(all) > 0 {
		return all, nil
	}
	if near := cli.Nearest(key, names); near != "" {
		return nil, cli.Usagef("no key %s; the nearest is %s", name, near)
	}
	_, asked := cutLast(key) // people may remember the last part alone
	near := slices.DeleteFunc(names, func(n string) bool {
		_, last := cutLast(n)
		return last != asked
	})
	if len(near) > 0 {
		return nil, cli.Usagef("no key %s; there is: %s", name, strings.Join(near, ", "))
	}
	return nil, cli.Usagef("no key %s (hearth config show lists all)", name)
}

// Keys are the names of all keys of this version.
func Keys() (all []string) {
	for _, p := range Params() {
		all = append(all, p.Key)
	}
	return all
}

func (p Param) explained() Explained {
	e := Explained{Key: p.Key, Type: p.Kind, Unit: p.unit(), Default: p.Default, Help: p.Help,
		Environment: p.Variable(), File: !p.FlagOnly, Restart: !p.Live, Example: p.example()}
	if p.Flag != "" {
		e.Flag = "--" + p.Flag
	}
	if p.FlagOnly {
		e.Restart = false // it is about one mount, not about the node
	}
	return e
}

func (p Param) unit() string {
	switch p.Kind {
	case "size":
		return "bytes, as 512MiB or 1.5TB, or a percentage, as 20%"
	case "rate":
		return "bytes per second, as 200MiB/s"
	case "duration":
		return "time, as 60s or 24h"
	case "mode":
		return "permission bits, octal"
	}
	return ""
}

// example is how the key may stand in the file, on one line, or on a command line.
func (p Param) example() string {
	v := p.sample()
	if p.FlagOnly {
		if p.Kind == "bool" {
			return fmt.Sprintf("hearth mount --%s ORIGIN DIR", p.Flag)
		}
		if strings.Contains(v, "*") {
			v = "'" + v + "'"
		}
		return fmt.Sprintf("hearth mount --%s %s ORIGIN DIR", p.Flag, v)
	}
	if strings.ContainsAny(v, ":{}[],#&*!|>'\"%@`=") && !strings.HasSuffix(v, "%") {
		v = `"` + v + `"`
	}
	parts := strings.Split(p.Key, ".")
	for i, part := range slices.Backward(parts) {
		name, inList := strings.CutSuffix(part, "[]")
		if inList {
			v = "[" + v + "]"
		}
		v = name + ": " + v
		if i > 0 {
			v = "{" + v + "}"
		}
	}
	return v
}

// sample is a valid value of the key.
func (p Param) sample() string {
	switch p.Kind {
	case "size":
		if strings.HasSuffix(p.Key, ".part_size") {
			return "64MiB"
		}
		return "20%"
	case "rate":
		return "200MiB/s"
	case "duration":
		return "30s"
	case "bool":
		return "true"
	case "freshness":
		return "bounded(60s)"
	}
	samples := map[string]string{
		"volumes.devices[].url": "/dev/nvme1n1", "volumes.devices": "/dev/nvme1n1,nvme+tcp://10.0.0.5/nqn.2014-08.org.example:v1", "secret_file": "/etc/hearth/volume.secret", "copies": "2", "fill": "all",
		"cache.disks[].path": "/nvme0/hearth", "mounts[].path": "/mnt/data",
		"origin": "s3://bucket/prefix", "url": "s3://bucket/prefix", "endpoint": "http://host:9000", "region": "us-east-1",
		"path_style": "true", "ca_file": "/etc/ssl/ours.pem", "identity": "ours", "connections": "128",
		"path": "/imagenet", "prefix": "imagenet/", "options": "nodev,noexec", "open": "none",
		"write": "through", "fsync": "bucket", "staging": "*.tmp,*.part",
		"sse": "aws:kms", "kms_key": "alias/ours", "storage_class": "STANDARD_IA",
		"uid": "1000", "gid": "1000", "file_mode": "0440", "dir_mode": "0550",
		"disks": "/nvme0/hearth=1TB,/nvme1/hearth=1TB", "without": "passthrough",
		"name": "gpu-1", "node.listen": "10.0.0.5:7946", "zone": "rack-7", "join": "10.0.0.5,10.0.0.6", "cluster.name": "prod", "key_file": "/etc/hearth/key",
		"cluster.encryption": "off",
		"s3.listen":          ":9000", "credentials_file": "/etc/hearth/s3-keys", "anonymous": "public,models/llm", "certificate": "/etc/hearth/s3.pem", "certificate_key": "/etc/hearth/s3.key",
		"domains": "s3.example.org", "access_log": "/var/log/hearth-s3.log", "cors": "https://app.example.org", "max_connections": "2000", "max_requests": "1000",
		"socket": "/run/hearth/hearth.sock", "listen": "127.0.0.1:9876", "level": "warn", "file": "/var/log/hearth.log",
	}
	if v, ok := samples[p.Key]; ok {
		return v
	}
	_, last := cutLast(p.Key)
	return samples[last]
}
