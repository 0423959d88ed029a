package nvmetcp

import (
	"bytes"
	"encoding/hex"
	"errors"
	"strings"
	"testing"
	"time"
)

// bits makes bytes of hexadecimal digits with spaces; "x*n" repeats the byte x.
func raw(t testing.TB, text string) []byte {
	t.Helper()
	var b []byte
	for word := range strings.FieldsSeq(text) {
		digits, times, many := strings.Cut(word, "*")
		one, err := hex.DecodeString(digits)
		n := 1
		if many {
			n = 0
			for _, d := range times {
				n = 10*n + int(d-'0')
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		b = append(b, bytes.Repeat(one, n)...)
	}
	return b
}

func TestPDUBytes(t *testing.T) {
	// Each PDU that we send has the bytes that the specification's tables give, made here by hand.
	head := make([]byte, maxHeadLen)
	capsule := func(f framing, c command, cid uint16, data []byte, in bool) []byte {
		clear(head)
		c.put(head[commonLen:], cid, len(data), in)
		if !in {
			data = nil
		}
		b := bytes.Clone(f.command(head, len(data)))
		return append(b, data...)
	}
	plain, padded := framing{align: 4}, framing{digests{true, true}, 128}
	for _, c := range []struct {
		story string
		got   []byte
		want  string
	}{
		{"ICReq", icReq(digests{}), "00 00 80 00 80000000 0000 00 00 03000000 00*112"},
		{"ICReq, header digest", icReq(digests{header: true}), "00 00 80 00 80000000 0000 00 01 03000000 00*112"},
		{"ICReq, both digests", icReq(digests{true, true}), "00 00 80 00 80000000 0000 00 03 03000000 00*112"},
		{"Read of 8 blocks at 2^32+5, command 0402h", capsule(plain, ioCommand(opRead, 7, 1<<32+5, 8), 0x0402, make([]byte, 4096), false),
			"04 00 48 00 48000000 02 40 0204 07000000 00*8 00*8 00*8 00100000 000000 5a 05000000 01000000 07000000 00*12"},
		{"Write in the capsule", capsule(plain, ioCommand(opWrite, 1, 2, 1), 3, []byte{9, 8, 7, 6}, true),
			"04 00 48 48 4c000000 01 40 0300 01000000 00*8 00*8 00*8 04000000 000000 01 02000000 00000000 00000000 00*12 09080706"},
		{"Write by R2T", capsule(plain, ioCommand(opWrite, 1, 2, 1), 3, []byte{9, 8, 7, 6}, false),
			"04 00 48 00 48000000 01 40 0300 01000000 00*8 00*8 00*8 04000000 000000 5a 02000000 00000000 00000000 00*12"},
		{"Flush", capsule(plain, command{opcode: opFlush, nsid: 1}, 3, nil, false),
			"04 00 48 00 48000000 00 40 0300 01000000 00*8 00*8 00*8 00000000 000000 5a 00*24"},
		{"Deallocate", capsule(plain, deallocate(1), 3, make([]byte, 16), true),
			"04 00 48 48 58000000 09 40 0300 01000000 00*8 00*8 00*8 10000000 000000 01 00000000 04000000 00*16 00*16"},
		{"Connect of queue 2, 33 entries, flow control off", capsule(plain, connectCommand(2, 33, false, 0), 1, nil, true)[:72],
			"04 00 48 00 48000000 7f 40 0100 01 00*27 00000000 000000 01 0000 0200 2000 04 00 00000000 00*12"},
		{"Connect of the admin queue, flow control on, KATO 5000 ms", capsule(plain, connectCommand(0, 32, true, 5*time.Second), 1, nil, true)[:72],
			"04 00 48 00 48000000 7f 40 0100 01 00*27 00000000 000000 01 0000 0000 1f00 00 00 88130000 00*12"},
		{"Property Get of CAP", capsule(plain, propertyGet(propertyCAP, true), 1, nil, false),
			"04 00 48 00 48000000 7f 40 0100 04 00*27 00000000 000000 5a 01 000000 00000000 00*16"},
		{"Property Set of CC", capsule(plain, propertySet(propertyCC, ccEnable), 1, nil, false),
			"04 00 48 00 48000000 7f 40 0100 00 00*27 00000000 000000 5a 00 000000 14000000 01004600 00*12"},
		{"Identify Namespace 3", capsule(plain, identify(cnsNamespace, 3), 1, nil, false),
			"04 00 48 00 48000000 06 40 0100 03000000 00*24 00000000 000000 5a 00*24"},
		{"Set Features, 4 queues", capsule(plain, setFeatures(featureQueues, 3|3<<16), 1, nil, false),
			"04 00 48 00 48000000 09 40 0100 00000000 00*24 00000000 000000 5a 07000000 03000300 00*16"},
		{"Get Log Page of ANA, 16 KiB", capsule(plain, getLogPage(logANA, 1, 16384, 0), 1, nil, false),
			"04 00 48 00 48000000 02 40 0100 ffffffff 00*24 00000000 000000 5a 0c01ff0f 00*20"},
		{"H2CData", bytes.Clone(plain.h2cData(head, transfer{5, 6, 4096, 8192}, false)),
			"06 00 18 18 18200000 0500 0600 00100000 00200000 00000000"},
		{"the last H2CData", bytes.Clone(plain.h2cData(head, transfer{5, 6, 4096, 4}, true)),
			"06 04 18 18 1c000000 0500 0600 00100000 04000000 00000000"},
		{"H2CData with digests and padding to 128", append(bytes.Clone(padded.h2cData(head, transfer{5, 6, 0, 4}, true)[:24]), head[28:128]...),
			"06 07 18 80 88000000 0500 0600 00000000 04000000 00000000 00*100"},
	} {
		if want := raw(t, c.want); !bytes.Equal(c.got, want) {
			t.Errorf("%s:\n%x, want\n%x", c.story, c.got, want)
		}
	}
}

func TestDigest(t *testing.T) {
	// The digest is that of iSCSI's test vectors (RFC 3720, B.4), least significant byte first, behind the header.
	if got := crc32c(make([]byte, 32)); got != 0x8a9136aa {
		t.Errorf("32 zeros have %08x", got)
	}
	if got := crc32c(bytes.Repeat([]byte{0xff}, 32)); got != 0x62a8ab43 {
		t.Errorf("32 ones have %08x", got)
	}
	head := make([]byte, maxHeadLen)
	f := framing{digests{header: true}, 4}
	b := f.h2cData(head, transfer{1, 2, 3, 4}, true)
	if want := crc32c(b[:24]); len(b) != 28 || b[3] != 28 || b[24] != byte(want) || b[27] != byte(want>>24) || b[4] != 32 {
		t.Errorf("%x, want %08x behind 24 bytes", b, want)
	}
}

func TestConnectData(t *testing.T) {
	// The host's identity and the two names lie where Fabrics 3.3 puts them.
	o := Options{SubsystemNQN: "sub", HostNQN: "host", HostID: [16]byte{1, 15: 2}}
	want := raw(t, "01 00*14 02 ffff 00*238 737562 00*253 686f7374 00*252 00*256")
	if got := connectData(&o, anyController); !bytes.Equal(got, want) {
		t.Errorf("%x, want %x", got, want)
	}
}

func TestICResp(t *testing.T) {
	// What a target may answer to ICReq, and what ends the connection.
	for _, c := range []struct {
		story, resp string
		asked       digests
		want        icResp
		fault       error
	}{
		{"nvmet", "01 00 80 00 80000000 0000 00 00 00004000 00*112", digests{}, icResp{align: 4, maxData: maxSendData}, nil},
		{"nvmet, data digest", "01 00 80 00 80000000 0000 00 02 00004000 00*112", digests{data: true}, icResp{digests{data: true}, 4, maxTransfer}, nil},
		{"padding of 128, small PDUs", "01 00 80 00 80000000 0000 1f 00 00100000 00*112", digests{}, icResp{align: 128, maxData: 4096}, nil},
		{"both digests", "01 00 80 00 80000000 0000 00 03 00100000 00*112", digests{true, true}, icResp{digests{true, true}, 4, 4096}, nil},
		{"a digest less", "01 00 80 00 80000000 0000 00 01 00100000 00*112", digests{true, true}, icResp{}, ErrRefused},
		{"a digest more", "01 00 80 00 80000000 0000 00 01 00100000 00*112", digests{}, icResp{}, ErrRefused},
		{"another version", "01 00 80 00 80000000 0100 00 00 00100000 00*112", digests{}, icResp{}, ErrPath},
		{"CPDA of 32", "01 00 80 00 80000000 0000 20 00 00100000 00*112", digests{}, icResp{}, ErrPath},
		{"MAXH2CDATA of 4095", "01 00 80 00 80000000 0000 00 00 ff0f0000 00*112", digests{}, icResp{}, ErrPath},
		{"an ICReq", "00 00 80 00 80000000 0000 00 00 00100000 00*112", digests{}, icResp{}, ErrPath},
		{"a longer one", "01 00 80 00 81000000 0000 00 00 00100000 00*112", digests{}, icResp{}, ErrPath},
		{"HTTP", "48545450 2f312e31 20343030 20*116", digests{}, icResp{}, ErrPath},
	} {
		r, err := parseICResp(raw(t, c.resp), c.asked)
		if !errors.Is(err, c.fault) || err == nil && r != c.want {
			t.Errorf("%s: %+v %v, want %+v %v", c.story, r, err, c.want, c.fault)
		}
	}
}

func TestCommonHeader(t *testing.T) {
	// A header from the target is taken only with the lengths and flags that its type has.
	none, both := digests{}, digests{true, true}
	for _, c := range []struct {
		story, head string
		d           digests
		ok          bool
	}{
		{"response", "05 00 18 00 18000000", none, true},
		{"response with digest", "05 01 18 00 1c000000", both, true},
		{"response without the digest", "05 00 18 00 18000000", both, false},
		{"response that says digest and is short", "05 01 18 00 18000000", both, false},
		{"response with a digest that nobody wanted", "05 01 18 00 1c000000", none, false},
		{"response with data", "05 00 18 18 1c000000", none, false},
		{"response of 4 GiB", "05 00 18 00 ffffffff", none, false},
		{"response with HLEN 23", "05 00 17 00 18000000", none, false},
		{"R2T", "09 00 18 00 18000000", none, true},
		{"data", "07 04 18 18 19000000", none, true},
		{"data of 4 GiB: the slot refuses it", "07 0c 18 18 ffffffff", none, true},
		{"data without data", "07 04 18 18 18000000", none, false},
		{"data over its header", "07 04 18 17 19000000", none, false},
		{"data with padding", "07 04 18 ff 00010000", none, true},
		{"data with digests", "07 07 18 1c 21000000", both, true},
		{"data without data, with digests", "07 07 18 1c 20000000", both, false},
		{"data without its digest", "07 05 18 1c 21000000", both, false},
		{"data shorter than its header", "07 04 18 18 00000000", none, false},
		{"termination", "03 00 18 00 18000000", both, true},
		{"termination with a header", "03 00 18 00 98000000", none, true},
		{"termination with a book", "03 00 18 00 99000000", none, false},
		{"termination, cut", "03 00 18 00 17000000", none, false},
		{"a second ICResp", "01 00 80 00 80000000", none, false},
		{"what only hosts send", "06 00 18 18 19000000", none, false},
		{"type 08h", "08 00 18 00 18000000", none, false},
	} {
		if err := parseCommon(raw(t, c.head)).check(c.d); (err == nil) != c.ok || err != nil && !errors.Is(err, ErrPath) {
			t.Errorf("%s: %v", c.story, err)
		}
	}
}

func TestCompletion(t *testing.T) {
	// The parts of a completion lie where Base 3.3.3.2 puts them; the phase is no part of the status.
	c := parseCompletion(raw(t, "0102030405060708 0900 0a00 0b04 0140"))
	if want := (completion{result: 0x0807060504030201, cid: 0x040b, status: 0x2000}); c != want {
		t.Errorf("%+v, want %+v", c, want)
	}
	c = parseCompletion(raw(t, "00*14 0386")) // DNR, type 3, code 1
	if c.status.Type() != 3 || c.status.Code() != 1 || !c.status.DNR() {
		t.Errorf("%v", c.status)
	}
}

func TestTransfer(t *testing.T) {
	// R2T and C2HData have the same places for identifier, tag, offset and length.
	if got := parseTransfer(raw(t, "00*8 0100 0200 03000000 04000000 00*4")); got != (transfer{1, 2, 3, 4}) {
		t.Errorf("%+v", got)
	}
}

func TestTermination(t *testing.T) {
	// A target that ends a connection says why, and the error repeats it.
	for text, want := range map[string]string{
		"03 00 18 00 18000000 0100 04000000 00*10": "invalid PDU header field (01h, 4h)",
		"03 00 18 00 18000000 0600 00000000 00*10": "unsupported parameter (06h, 0h)",
		"03 00 18 00 18000000 0700 00000000 00*10": "reserved (07h, 0h)",
		"03 00 18 00 18000000 ffff ffffffff 00*10": "reserved (ffffh, ffffffffh)",
	} {
		if err := termination(raw(t, text)); !errors.Is(err, ErrPath) || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
