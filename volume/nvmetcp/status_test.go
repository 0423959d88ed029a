package nvmetcp

import (
	"errors"
	"testing"
)

func TestStatus(t *testing.T) {
	// Every status that this target of tests answers, and its neighbours, has its name, its class and its retry bit.
	for _, c := range []struct {
		status Status
		text   string
		class  error
	}{
		{0x006 | doNotRetry, "Internal Error (0/06h, do not retry)", ErrData},
		{0x00b | doNotRetry, "Invalid Namespace or Format (0/0Bh, do not retry)", ErrNamespace},
		{0x00f | doNotRetry, "Data SGL Length Invalid (0/0Fh, do not retry)", ErrRefused},
		{0x020 | doNotRetry, "Namespace is Write Protected (0/20h, do not retry)", ErrNamespace},
		{0x080, "LBA Out of Range (0/80h)", ErrNamespace},
		{0x081 | doNotRetry, "Capacity Exceeded (0/81h, do not retry)", ErrNamespace},
		{0x182, "Connect Invalid Parameters (1/82h)", ErrRefused},
		{0x184 | doNotRetry, "Connect Invalid Host (1/84h, do not retry)", ErrRefused},
		{0x191, "Authentication Required (1/91h)", ErrRefused},
		{0x281 | doNotRetry, "Unrecovered Read Error (2/81h, do not retry)", ErrData},
		{0x300, "Internal Path Error (3/00h)", ErrPath},
		{0x302, "Asymmetric Access Inaccessible (3/02h)", ErrPath},
		{0x07f, "generic status (0/7Fh)", ErrRefused},
		{0x1ff, "command specific status (1/FFh)", ErrRefused},
		{0x2ff, "media status (2/FFh)", ErrData},
		{0x3ff, "path status (3/FFh)", ErrPath},
		{0x7ff, "vendor status (7/FFh)", ErrRefused},
	} {
		var err error = &StatusError{"Read", c.status}
		if err.Error() != "Read: "+c.text || c.status.DNR() != (c.status&doNotRetry != 0) {
			t.Errorf("%q, want %q", err, c.text)
		}
		for _, class := range []error{ErrPath, ErrNamespace, ErrData, ErrRefused} {
			if errors.Is(err, class) != (class == c.class) {
				t.Errorf("%v is %v: %t", err, class, errors.Is(err, class))
			}
		}
	}
	for s := Status(1); s < 1<<11; s++ { // none is without a name and a class
		if k := s.lookup(); k.name == "" || k.class == nil {
			t.Errorf("%03x: %+v", uint16(s), k)
		}
	}
}
