package main

import (
	"errors"
	"slices"
	"strconv"
	"strings"
)

// mountOptions applies -o options: those for mount(8) itself are passed over,
// those for the kernel handed on, all others are the parameters of the table
// with _ for -. sloppy passes over those that nobody knows.
func mountOptions(s *settings, options []string, sloppy bool) error {
	for _, o := range options {
		err := mountOption(s, strings.TrimSpace(o))
		if sloppy && errors.Is(err, errUnknownOption) {
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// errUnknownOption is an -o option that is neither ours nor mount(8)'s.
var errUnknownOption = errors.New("unknown option")

func mountOption(s *settings, o string) error {
	ignored := []string{"", "defaults", "ro", "rw", "auto", "noauto", "nofail", "_netdev", "user", "users", "nouser",
		"owner", "group", "suid", "dev", "exec", "async", "sync", "atime", "noatime", "diratime", "nodiratime",
		"relatime", "norelatime", "strictatime", "lazytime", "nolazytime", "default_permissions", "silent", "loud"}
	kernel := []string{"nosuid", "nodev", "noexec"}
	name, value, valued := strings.Cut(o, "=")
	switch {
	case slices.Contains(ignored, o), strings.HasPrefix(o, "x-"), strings.HasPrefix(o, "X-"), name == "comment", valued && (name == "fsname" || name == "subtype"):
		return nil
	case slices.Contains(kernel, o):
		s.mount.Options = append(s.mount.Options, o)
		return nil
	case valued && (name == "umask" || name == "fmask" || name == "dmask"):
		return maskOption(s, name, value)
	case o == "no_allow_other":
		no := false
		s.mount.AllowOther = &no
		return nil
	}
	var names []string
	for _, p := range params() {
		if p.flag == "" {
			continue
		}
		option := strings.ReplaceAll(p.flag, "-", "_")
		names = append(names, option)
		if name != option {
			continue
		}
		if !valued {
			if !strings.HasPrefix(p.kind, "bool") {
				return usagef("-o %s: it needs a value", o)
			}
			value = "true"
		}
		if err := p.set(s, value); err != nil {
			return usagef("-o %s: %v", name, err)
		}
		return nil
	}
	if near := nearest(name, slices.Concat(names, ignored, kernel)); near != "" {
		return usagef("-o %s: %w; the nearest is %s", name, errUnknownOption, near)
	}
	return usagef("-o %s: %w (see hearth mount --help)", name, errUnknownOption)
}

// maskOption takes permission bits away, as FUSE's own options do.
func maskOption(s *settings, name, value string) error {
	mask, err := strconv.ParseUint(value, 8, 32)
	if err != nil || mask > 0o777 {
		return usagef("-o %s: %q is not a mask such as 022", name, value)
	}
	mode := 0o777 &^ uint32(mask)
	if name != "dmask" {
		s.mount.FileMode = mode
	}
	if name != "fmask" {
		s.mount.DirMode = mode
	}
	return nil
}

// mountHelperArgs turns the arguments that mount(8) gives to mount.hearth into
// those of `hearth mount`: SPEC DIR [-sfnv] [-N ns] [-o options] [-t type].
func mountHelperArgs(args []string) ([]string, error) {
	translated := []string{"mount", "--daemon"}
	var plain []string
	for i := 0; i < len(args); i++ {
		switch a := args[i]; {
		case a == "-o" || a == "-t" || a == "-N":
			if i++; i == len(args) {
				return nil, usagef("%s needs a value", a)
			}
			if a == "-o" {
				translated = append(translated, helperOptions(args[i])...)
			}
		case strings.HasPrefix(a, "-") && len(a) > 1 && strings.Trim(a[1:], "sfnvrw") == "":
			if strings.Contains(a, "f") {
				return []string{"version", "--quiet"}, nil // --fake: all but the mount
			}
			if strings.Contains(a, "s") {
				translated = append(translated, "--sloppy")
			}
		default:
			plain = append(plain, a)
		}
	}
	if len(plain) != 2 {
		return nil, usagef("mount.hearth ORIGIN DIR [-o options]")
	}
	return append(append(translated, "--"), plain...), nil
}

// helperOptions takes config= out of the options, which is no parameter.
func helperOptions(options string) []string {
	var rest, args []string
	for _, o := range strings.Split(options, ",") {
		if file, ok := strings.CutPrefix(o, "config="); ok {
			args = append(args, "--config", file)
			continue
		}
		rest = append(rest, o)
	}
	return append(args, "-o", strings.Join(rest, ","))
}
