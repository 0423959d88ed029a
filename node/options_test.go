package node

import (
	"strings"
	"testing"
)

func TestOptionsOfAMountAreKeptOrRefused(t *testing.T) {
	// An option may be what a mount is anyway, or what the kernel takes. An option that a mount never has,
	// or that nobody knows, is refused by name.
	for options, says := range map[string]string{
		"": "", "nodev": "", "ro,nosuid,nodev,noexec": "", "rw": "take rw away", "nodev,rw": "take rw away", "suid": `"suid" is none of`, "nodev, noexec": `" noexec" is none of`,
	} {
		err := validateMount(Mount{Dir: "/mnt", Options: strings.Split(options, ",")})
		switch {
		case says == "" && err != nil:
			t.Errorf("%q: %v", options, err)
		case says != "" && (err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "/mnt")):
			t.Errorf("%q: %v, expected %q", options, err, says)
		}
	}
}
