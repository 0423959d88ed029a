package settings

import (
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
	"github.com/hearthfs/hearth/node/config"
)

// MountOptions applies -o options. Options for mount(8) itself are passed over, and those for the
// kernel are handed on. All others are the parameters of the table, with _ for -. sloppy passes
// over unknown options. Unkept reports options that no mount can satisfy.
func (s *Settings) MountOptions(options []string, sloppy bool) error {
	for _, o := range options {
		err := mountOption(s, strings.TrimSpace(o))
		if sloppy && errors.Is(err, errUnknownOption) {
			continue
		}
		if err != nil {
			return err
		}
	}
	return s.writes()
}

// writes applies ro and rw, which say what the parameter write does.
func (s *Settings) writes() error {
	switch asked := s.Asked["ro"]; {
	case asked == "ro" && s.Mount.Write == config.WriteThrough:
		return cli.Usagef("-o ro and --write %s exclude each other: give one", s.Mount.Write)
	case asked == "rw" && !s.ByMount8 && s.Mount.Write == config.WriteOff:
		return cli.Usagef("-o rw and --write %s exclude each other: give one", s.Mount.Write)
	case asked == "ro":
		s.Mount.Write = config.WriteOff
	case asked == "rw" && !s.ByMount8:
		s.Mount.Write = config.WriteThrough
	}
	return nil
}

// errUnknownOption says that an -o option is neither ours nor mount(8)'s.
var errUnknownOption = errors.New("unknown option")

// Unkept says in which ways the mount will differ from its options. Of several options of one name
// the last counts.
func (s *Settings) Unkept() (all []string) {
	if s.Asked["ro"] == "rw" && s.Mount.Write == "" && s.Root.Write != config.WriteThrough {
		all = append(all, "rw: mount(8) asks for it where nobody has, so that the mount is read-only unless its link says write: through; say ro, or write=through")
	}
	for _, no := range []string{"nosuid", "nodev"} {
		if is := strings.TrimPrefix(no, "no"); s.Asked[no] == is {
			all = append(all, is+": a mount is always "+no+"; say "+no)
		}
	}
	return all
}

// ask notes an option that asks for what a mount always is, or for the opposite.
func (s *Settings) ask(o string) {
	for _, is := range []string{"ro", "nosuid", "nodev"} {
		if o == is || o == strings.TrimPrefix(is, "no") || o == "rw" && is == "ro" {
			if s.Asked == nil {
				s.Asked = map[string]string{}
			}
			s.Asked[is] = o
		}
	}
}

func mountOption(s *Settings, o string) error {
	s.ask(o)
	ignored := []string{"", "defaults", "ro", "rw", "auto", "noauto", "nofail", "_netdev", "user", "users", "nouser",
		"owner", "group", "suid", "dev", "exec", "async", "sync", "atime", "noatime", "diratime", "nodiratime",
		"relatime", "norelatime", "strictatime", "lazytime", "nolazytime", "default_permissions", "silent", "loud"}
	kernel := []string{"nosuid", "nodev", "noexec"}
	name, value, valued := strings.Cut(o, "=")
	switch {
	case slices.Contains(ignored, o), strings.HasPrefix(o, "x-"), strings.HasPrefix(o, "X-"), name == "comment", valued && (name == "fsname" || name == "subtype"):
		return nil
	case slices.Contains(kernel, o):
		s.Mount.Options = append(s.Mount.Options, o)
		return nil
	case valued && (name == "umask" || name == "fmask" || name == "dmask"):
		return maskOption(s, name, value)
	case o == "no_allow_other":
		no := false
		s.Mount.AllowOther = &no
		return nil
	}
	if o == "remount" {
		return cli.Usagef("-o remount: a mount's options do not change while it stands; unmount, and mount again")
	}
	var names []string
	for _, p := range Params() {
		if p.Flag == "" {
			continue
		}
		option := strings.ReplaceAll(p.Flag, "-", "_")
		names = append(names, option)
		if name != option {
			continue
		}
		if !valued {
			if !strings.HasPrefix(p.Kind, "bool") {
				return cli.Usagef("-o %s: it needs a value", o)
			}
			value = "true"
		}
		if err := p.set(s, value); err != nil {
			return cli.Usagef("-o %s: %v", name, err)
		}
		return nil
	}
	if near := cli.Nearest(name, slices.Concat(names, ignored, kernel)); near != "" {
		return cli.Usagef("-o %s: %w; the nearest is %s", name, errUnknownOption, near)
	}
	return cli.Usagef("-o %s: %w (see hearth mount --help)", name, errUnknownOption)
}

// maskOption removes permission bits, as FUSE's own options do.
func maskOption(s *Settings, name, value string) error {
	mask, err := strconv.ParseUint(value, 8, 32)
	if err != nil || mask > 0o777 {
		return cli.Usagef("-o %s: %q is not a mask such as 022", name, value)
	}
	mode := 0o777 &^ uint32(mask)
	if name != "dmask" {
		s.Mount.FileMode = mode
	}
	if name != "fmask" {
		s.Mount.DirMode = mode
	}
	return nil
}
