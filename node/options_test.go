package node

import (
	"strings"
	"testing"
)

func TestOptionsOfAMountAreKeptOrRefused(t *testing.T) {
	// What a mount is anyway, and what the kernel takes, may be said; what it never is, and what
	// nobody knows, is refused by name.
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
