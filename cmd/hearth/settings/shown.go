package settings

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/hearthfs/hearth/origin"
)

// Source is where a value comes from.
type Source string

// The sources of values. An earlier one wins over those after it.
const (
	FromFlag    Source = "flag"
	FromEnv     Source = "env"
	FromFile    Source = "file"
	FromDefault Source = "default"
)

// Value is the value of a key as it was written, or its default in words.
type Value struct {
	Key    string `json:"key"` // with the index of a list's element: links[0].path
	Value  string `json:"value"`
	Source Source `json:"source"`
	// Where is the flag, the variable, or FILE:LINE. "" means the default.
	Where string `json:"where,omitempty"`
}

// take reads a value into its field and notes its source.
func (s *Settings) take(p Param, v Value) error {
	if err := p.set(s, v.Value); err != nil {
		return err
	}
	if strings.HasSuffix(v.Key, "origin.url") { // a second name of the key
		v.Key = strings.TrimSuffix(v.Key, ".url")
	}
	s.given = slices.DeleteFunc(s.given, func(old Value) bool { return old.Key == v.Key })
	s.given = append(s.given, v)
	return nil
}

// Summary is one line about what was understood: the number of keys, the links, the size of the
// cache, and the mounts.
func (s *Settings) Summary() string {
	written := func(key, otherwise string) string {
		if i := slices.IndexFunc(s.given, func(v Value) bool { return v.Key == key }); i >= 0 {
			return s.given[i].Value
		}
		return otherwise
	}
	var links, disks, mounts []string
	for _, l := range s.Tree("") {
		links = append(links, l.Path+" "+withoutSecrets(l.Origin.URL))
	}
	for i, d := range s.Cache.Disks {
		disks = append(disks, d.Path+" "+written(fmt.Sprintf("cache.disks[%d].size", i), "10%"))
	}
	for _, m := range s.Mounts {
		mounts = append(mounts, m.Dir)
	}
	if len(disks) == 0 {
		disks = []string{"default"}
	}
	return fmt.Sprintf("keys: %d; links: %s; cache: ram %s, disks %s; mounts: %s", len(s.given), listed(links),
		written("cache.ram", "default"), written("cache.disks", strings.Join(disks, ", ")), listed(mounts))
}

func listed(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// Values are the values in force of all keys, in the order of the table, with secrets removed from
// URLs. here has the values of defaults that depend on the machine.
func (s *Settings) Values(here map[string]string) (all []Value) {
	rows := slices.DeleteFunc(Params(), func(p Param) bool { return strings.HasSuffix(p.Key, "origin.url") })
	for len(rows) > 0 {
		list, _, inList := strings.Cut(rows[0].Key, "[]")
		if !inList {
			if !flagged(rows[0].Key) || s.elements(rows[0].Key) == 0 {
				all = append(all, s.value(rows[0].Key, rows[0], here))
			}
			rows = rows[1:]
			continue
		}
		n := slices.IndexFunc(rows, func(p Param) bool { return !strings.HasPrefix(p.Key, list+"[]") })
		if n < 0 {
			n = len(rows)
		}
		for i := range s.elements(list) {
			for _, p := range rows[:n] {
				all = append(all, s.value(strings.Replace(p.Key, "[]", fmt.Sprintf("[%d]", i), 1), p, here))
			}
		}
		if s.count(list) == 0 && !flagged(list) {
			all = append(all, Value{Key: list, Value: "none", Source: FromDefault})
		}
		rows = rows[n:]
	}
	return all
}

// flagged reports whether a list of elements may also be given as one value, by a flag.
func flagged(list string) bool { return list == "cache.disks" || list == "volumes.devices" }

// elements is the number of a list's elements that have keys of their own. A list that was given as
// one value has none.
func (s *Settings) elements(list string) int {
	if slices.ContainsFunc(s.given, func(v Value) bool { return v.Key == list }) {
		return 0
	}
	return s.count(list)
}

func (s *Settings) value(key string, p Param, here map[string]string) Value {
	v := Value{Key: key, Value: p.Default, Source: FromDefault}
	if text := here[key]; text != "" {
		v.Value = text
	}
	if i := slices.IndexFunc(s.given, func(g Value) bool { return g.Key == key }); i >= 0 {
		v = s.given[i]
	} else if aws, ok := s.fromAWS(key); ok {
		v = aws
	}
	if p.Kind == "url" {
		v.Value = withoutSecrets(v.Value)
	}
	return v
}

// fromAWS is the value from the standard AWS variables, or from a profile, of an S3 origin's key
// that was not set.
func (s *Settings) fromAWS(key string) (Value, bool) {
	of, field := cutLast(key)
	at := ""
	if i := slices.IndexFunc(s.given, func(v Value) bool { return v.Key == of }); i >= 0 {
		at = s.given[i].Value
	}
	if !strings.HasSuffix(of, "origin") || strings.HasPrefix(at, "file:") {
		return Value{}, false
	}
	c := origin.Config{}.FromEnvironment()
	text, variables := "", []string(nil)
	switch field {
	case "endpoint":
		text, variables = c.Endpoint, []string{"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"}
	case "region":
		text, variables = c.Region, []string{"AWS_REGION", "AWS_DEFAULT_REGION"}
	case "ca_file":
		text, variables = c.CAFile, []string{"AWS_CA_BUNDLE"}
	}
	if text == "" {
		return Value{}, false
	}
	for _, name := range variables {
		if os.Getenv(name) == text {
			return Value{Key: key, Value: text, Source: FromEnv, Where: name}, true
		}
	}
	return Value{Key: key, Value: text, Source: FromFile, Where: "the AWS profile"}, true
}

// cutLast splits the last part off a key.
func cutLast(key string) (before, last string) {
	i := strings.LastIndexByte(key, '.')
	return key[:max(i, 0)], key[i+1:]
}

// withoutSecrets hides the user and the password of a URL.
func withoutSecrets(url string) string {
	scheme, rest, ok := strings.Cut(url, "://")
	if !ok {
		return url
	}
	authority, path, more := strings.Cut(rest, "/")
	i := strings.LastIndexByte(authority, '@')
	if i < 0 {
		return url
	}
	url = scheme + "://(hidden)" + authority[i:]
	if more {
		url += "/" + path
	}
	return url
}
