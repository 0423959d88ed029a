package secret

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	keyHex   = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
	otherHex = "ff0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
	phrase   = "six words of a pass phrase"
)

func TestKeyText(t *testing.T) {
	// One word is hex or base64 of 32 bytes, several are a pass phrase. Text that is too
	// weak, or is no text, is refused. The error says what is wrong and quotes none of
	// it.
	key, _ := hex.DecodeString(keyHex)
	long := append(append([]byte(nil), key...), 0xfb, 0xff)
	for _, x := range []struct {
		name, text, same string
		err              error
		says             string
	}{
		{name: "hex", text: keyHex, same: keyHex},
		{name: "hex as its file has it", text: keyHex + "\n", same: keyHex},
		{name: "upper case", text: " " + strings.ToUpper(keyHex) + "\r\n", same: keyHex},
		{name: "base64", text: base64.StdEncoding.EncodeToString(key), same: keyHex},
		{name: "base64 without padding", text: base64.RawStdEncoding.EncodeToString(key), same: keyHex},
		{name: "the URL alphabet", text: base64.URLEncoding.EncodeToString(long), same: hex.EncodeToString(long)},
		{name: "more bytes", text: base64.StdEncoding.EncodeToString(long), same: hex.EncodeToString(long)},
		{name: "phrase", text: phrase, same: phrase},
		{name: "phrase over lines", text: "six words\n of a\tpass  phrase\n", same: phrase},
		{name: "phrase beyond ASCII", text: "größe über öfter äpfel straße ärger", same: "größe über öfter äpfel straße ärger"},

		{name: "nothing", text: "", err: errNoText},
		{name: "white space", text: " \n\t", err: errNoText},
		{name: "short hex", text: keyHex[:62], says: "31 bytes as hex"},
		{name: "hex that lost a digit", text: keyHex[:63], err: errOddHex}, // otherwise 47 bytes as base64
		{name: "short base64", text: base64.StdEncoding.EncodeToString(key[:31]), says: "31 bytes as base64"},
		{name: "a word", text: "correct-horse!", err: errOneWord},
		{name: "zeros", text: strings.Repeat("0", 64), err: errRepeats},
		{name: "a pattern", text: strings.Repeat("deadbeef", 8), err: errRepeats},
		{name: "five words", text: "unmistakably five considerable words altogether", err: errFewWords},
		{name: "a repeated word", text: strings.Repeat("hearth ", 9), err: errFewWords},
		{name: "six letters", text: "a b c d e f", err: errFewWords},
		{name: "base64 over lines", text: base64.StdEncoding.EncodeToString(long[:24]) + "\n" + base64.StdEncoding.EncodeToString(long), err: errFewWords},
		{name: "random bytes", text: string([]byte{0xff, 0xfe, 0x01}), err: errNotText},
		{name: "a zero byte", text: keyHex + "\x00", err: errNotText},
		{name: "a byte order mark", text: "\ufeff" + keyHex, err: errNotText},
		{name: "a large file", text: strings.Repeat("word ", 1000), err: errTooLong},
	} {
		t.Run(x.name, func(t *testing.T) {
			k, err := Parse(x.text)
			if x.same == "" {
				if err == nil || x.err != nil && !errors.Is(err, x.err) || !strings.Contains(err.Error(), x.says) {
					t.Fatalf("the error is %v", err)
				}
				if text := strings.TrimSpace(x.text); len(text) > 11 && strings.Contains(err.Error(), text[:12]) {
					t.Fatalf("the error tells the key: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			want := x.same
			if !k.of().phrase {
				want = string(unhex(t, x.same))
			}
			if string(k.of().bytes) != want {
				t.Fatal("another key than was written")
			}
		})
	}
}

func unhex(t testing.TB, s string) []byte {
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestGenerate(t *testing.T) {
	// What is generated is one line that can be read back, and never the same.
	a, b := Generate(), Generate()
	if a == b || !strings.HasSuffix(a, "\n") || strings.Count(a, "\n") != 1 {
		t.Fatal("no two different lines")
	}
	k, err := Parse(a)
	if err != nil || len(k.of().bytes) != minKeyBytes || k.of().phrase {
		t.Fatalf("%d bytes, %v", len(k.of().bytes), err)
	}
}

func TestKeyFile(t *testing.T) {
	// A key's file that others may read or change is refused with the cure.
	path := filepath.Join(t.TempDir(), "cluster.key")
	if err := os.WriteFile(path, []byte(Generate()), 0o600); err != nil {
		t.Fatal(err)
	}
	for mode, good := range map[fs.FileMode]bool{0o400: true, 0o600: true, 0o440: true, 0o640: true, 0o644: false, 0o604: false, 0o660: false, 0o602: false, 0o601: false} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		_, err := ReadFile(path)
		if good != (err == nil) {
			t.Errorf("mode %04o: %v", mode, err)
		}
		if !good && !strings.Contains(err.Error(), "chmod 600 "+path) {
			t.Errorf("no cure in: %v", err)
		}
	}
}

func TestNoKeyFile(t *testing.T) {
	// Whatever is no key's file is an error that names it, and takes no time.
	dir := t.TempDir()
	fifo, short := filepath.Join(dir, "fifo"), filepath.Join(dir, "short")
	if err := errors.Join(syscall.Mkfifo(fifo, 0o600), os.WriteFile(short, []byte("abcd"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, fifo, short, filepath.Join(dir, "none")} {
		if _, err := ReadFile(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if _, err := ReadFile(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

func TestKeyInEnvironment(t *testing.T) {
	// The environment is as good as a file; a variable that is not set is named.
	const name = "HEARTH_TEST_KEY"
	if _, err := ReadEnv(name); err == nil || !strings.Contains(err.Error(), name+" is not set") {
		t.Error(err)
	}
	t.Setenv(name, keyHex)
	k, err := ReadEnv(name)
	if err != nil || string(k.of().bytes) != string(unhex(t, keyHex)) {
		t.Error(err)
	}
	t.Setenv(name, "abcd")
	if _, err := ReadEnv(name); err == nil || !strings.Contains(err.Error(), "$"+name) {
		t.Error(err)
	}
}

func TestSecretsAreNotPrinted(t *testing.T) {
	// No verb, no structure around it and no log shows a key or what is derived from it.
	k, err := Parse(keyHex)
	if err != nil {
		t.Fatal(err)
	}
	c := cluster(t, keyHex, "test")
	i := identity(t, c, "n1", Options{})
	hidden := struct {
		key      Key
		cluster  *Cluster
		identity *Identity
	}{k, c, i}
	var secrets []string
	// A configuration gives no other access to a node's own private key than to sign.
	if _, ok := i.ClientConfig().Certificates[0].PrivateKey.(signer); !ok {
		t.Error("a configuration has a private key that can be printed")
	}
	for _, b := range [][]byte{k.of().bytes, c.keys().gossip, c.keys().plain, c.keys().authority.Seed()} {
		b = b[:12]
		decimal := fmt.Sprint(b)
		secrets = append(secrets, string(b), hex.EncodeToString(b), strings.ToUpper(hex.EncodeToString(b)),
			decimal[1:len(decimal)-1], base64.StdEncoding.EncodeToString(b), strings.Trim(fmt.Sprintf("%#v", b), "[]byte{}"))
	}
	var log strings.Builder
	for _, h := range []slog.Handler{slog.NewTextHandler(&log, nil), slog.NewJSONHandler(&log, nil)} {
		slog.New(h).Info("made", "key", k, "cluster", c, "identity", i, "all", hidden)
	}
	for _, x := range []any{k, &k, c, *c, i, hidden, &hidden, []Key{k}, map[string]*Cluster{"c": c}, i.ClientConfig(), i.ServerConfig()} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d"} {
			_, _ = fmt.Fprintf(&log, verb+"\n", x)
		}
	}
	for _, s := range secrets {
		if strings.Contains(log.String(), s) {
			t.Fatalf("a secret is printed: %q", s)
		}
	}
	if s := fmt.Sprint(k); s != "(cluster key, not shown)" {
		t.Error(s)
	}
	if s := fmt.Sprint(c, i); !strings.Contains(s, c.Fingerprint()) || !strings.Contains(s, "n1") {
		t.Error(s)
	}
}
