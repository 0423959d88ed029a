package main

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/hearthfs/hearth/cmd/hearth/cli"
)

// mount8Flag marks a call by mount(8), which says rw where nobody has said anything.
const mount8Flag = "by-mount8"

// mountHelperArgs turns the arguments that mount(8) gives to mount.hearth into
// those of `hearth mount`: SPEC DIR [-sfnv] [-N ns] [-o options] [-t type]. fstab is the text
// of /etc/fstab.
func mountHelperArgs(args []string, fstab string) ([]string, error) {
	translated := []string{"mount", "--daemon", "--" + mount8Flag}
	var plain []string
	for i := 0; i < len(args); i++ {
		switch a := args[i]; {
		case a == "-o" || a == "-t" || a == "-N":
			if i++; i == len(args) {
				return nil, cli.Usagef("%s needs a value", a)
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
			if i := strings.LastIndexAny(a, "rw"); i >= 0 {
				translated = append(translated, "-o", map[byte]string{'r': "ro", 'w': "rw"}[a[i]])
			}
		default:
			plain = append(plain, a)
		}
	}
	if len(plain) != 2 {
		return nil, cli.Usagef("mount.hearth ORIGIN DIR [-o options]")
	}
	if saysRW(fstab, plain[1]) {
		translated = append(translated, "-o", "write=through")
	}
	return append(append(translated, "--"), plain...), nil
}

// saysRW reports whether the line of fstab for a directory says rw itself. What mount(8) hands on
// does not tell that.
func saysRW(fstab, dir string) bool {
	escapes := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	for line := range strings.Lines(fstab) {
		f := strings.Fields(line)
		if len(f) > 3 && !strings.HasPrefix(f[0], "#") && filepath.Clean(escapes.Replace(f[1])) == filepath.Clean(dir) {
			options := strings.Split(f[3], ",")
			if rw := slices.Index(options, "rw"); rw >= 0 && !slices.Contains(options[rw:], "ro") {
				return true
			}
		}
	}
	return false
}

// helperOptions turns the option config=, which is no parameter, into the flag --config.
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
