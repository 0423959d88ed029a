package keys

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
)

const (
	// maxKeys, and maxLine in bytes, bound a file; maxTargets bounds the targets of one key.
	maxKeys    = 10_000
	maxLine    = 4 << 10
	maxTargets = 1_000
	// maxLines bounds comments and further lines of a key.
	maxLines = 10 * maxKeys
	// minAccess and maxAccess are the lengths of an access key, bytes: those of AWS's.
	minAccess, maxAccess = 3, 128
	// minSecret and maxSecret are the lengths of a secret, bytes: MinIO takes none shorter.
	minSecret, maxSecret = 8, 256
)

// table is who may do what; it does not change once in force.
type table struct{ keys map[string]*owner }

// owner is the secret and the rights of a key.
type owner struct {
	secret  string
	targets []target
}

// target is what a right covers.
type target struct {
	all            bool // whatever bucket and prefix
	bucket, prefix string
	write          bool
}

// readFile adds the keys of a file, and returns its FileInfo, even where it is wrong.
func (t *table) readFile(name string) (fs.FileInfo, error) {
	if info, err := os.Stat(name); err != nil || !info.Mode().IsRegular() { // opening a pipe would wait
		return info, orNoFile(err)
	}
	f, err := os.Open(name)
	if err != nil {
		info, _ := os.Stat(name) // so that an error is reported once
		return info, err
	}
	defer func() { _ = f.Close() }() // it was only read
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.Mode().Perm()&0o007 != 0 {
		return info, fmt.Errorf("%s may be read or written by others, with the secrets in it: chmod 600 %s", name, name)
	}
	wrong := t.parse(f)
	if then, err := f.Stat(); err != nil || !same(info, then) {
		return nil, errBeingWritten
	}
	if wrong != nil {
		return info, fmt.Errorf("%s, %w", name, wrong)
	}
	return info, nil
}

// errBeingWritten means that the file changed while it was read.
var errBeingWritten = errors.New("it is being written")

func orNoFile(err error) error {
	if err != nil {
		return err
	}
	return errors.New("it is no file")
}

// parse adds the keys of a file's text. Errors name the line, never its content.
func (t *table) parse(text io.Reader) error {
	lines := bufio.NewScanner(text)
	lines.Buffer(make([]byte, 0, maxLine+2), maxLine+2)
	n := 0
	for lines.Scan() {
		if n++; n > maxLines {
			return fmt.Errorf("line %d: there are more than %d lines", n, maxLines)
		}
		fields := strings.Fields(strings.TrimPrefix(lines.Text(), "\ufeff"))
		for i, f := range fields {
			if f[0] == '#' {
				fields = fields[:i]
				break
			}
		}
		if len(fields) == 0 {
			continue
		}
		if len(fields) < 4 {
			return fmt.Errorf("line %d: it has fewer than the four fields ACCESS SECRET ro|rw TARGET", n)
		}
		if err := t.add(fields[0], fields[1], fields[2:]); err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
	}
	if err := lines.Err(); err != nil {
		if errors.Is(err, bufio.ErrTooLong) {
			return fmt.Errorf("line %d: it is longer than %d bytes", n+1, maxLine)
		}
		return fmt.Errorf("line %d: %w", n+1, err)
	}
	return nil
}

// add adds rights to a key, which may have some already.
func (t *table) add(access, secret string, rights []string) error {
	switch {
	case len(access) < minAccess || len(access) > maxAccess || !visible(access) || strings.ContainsAny(access, ",="):
		return fmt.Errorf("an access key is of %d to %d visible ASCII characters other than comma and equals sign", minAccess, maxAccess)
	case len(secret) < minSecret || len(secret) > maxSecret || !visible(secret):
		return fmt.Errorf("a secret is of %d to %d visible ASCII characters", minSecret, maxSecret)
	}
	o := t.keys[access]
	switch {
	case o == nil && len(t.keys) >= maxKeys:
		return fmt.Errorf("there are more than %d keys", maxKeys)
	case o == nil:
		o = &owner{secret: secret}
		t.keys[access] = o
	case o.secret != secret:
		return errors.New("this access key was there before, with another secret")
	}
	return o.grant(rights)
}

// visible reports whether s has only visible ASCII characters.
func visible(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// grant adds `ro|rw TARGET...`, targets separated by blanks or commas.
func (o *owner) grant(rights []string) error {
	if len(rights) < 2 {
		return errors.New("rights are ro or rw, and at least one TARGET")
	}
	write := rights[0] == "rw"
	if !write && rights[0] != "ro" {
		return errors.New("the right is neither ro nor rw")
	}
	before := len(o.targets)
	for _, field := range rights[1:] {
		for text := range strings.SplitSeq(field, ",") {
			if text == "" {
				continue
			}
			t, err := parseTarget(text)
			if err != nil {
				return err
			}
			if len(o.targets) == maxTargets {
				return fmt.Errorf("a key has more than %d targets", maxTargets)
			}
			t.write = write
			o.targets = append(o.targets, t)
		}
	}
	if len(o.targets) == before {
		return errors.New("there is no TARGET: `*`, BUCKET or BUCKET/PREFIX")
	}
	return nil
}

// parseTarget reads `*`, BUCKET or BUCKET/PREFIX.
func parseTarget(text string) (t target, err error) {
	if text == "*" {
		return target{all: true}, nil
	}
	if strings.Contains(text, "*") {
		return t, errors.New("a target is no pattern: BUCKET/PREFIX is all that begins with PREFIX (a key's own * is %2A)")
	}
	bucket, prefix, _ := strings.Cut(text, "/")
	if t.bucket, err = unescape(bucket); err != nil {
		return t, err
	}
	if t.bucket == "" {
		return t, errors.New("a target has no bucket")
	}
	t.prefix, err = unescape(prefix)
	return t, err
}

// unescape replaces %XX by its byte.
func unescape(s string) (string, error) {
	if strings.IndexByte(s, '%') < 0 {
		return s, nil
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c == '%' {
			if i+2 >= len(s) || hexDigit(s[i+1]) < 0 || hexDigit(s[i+2]) < 0 {
				return "", errors.New("in a target % begins %XX (a key's own % is %25)")
			}
			c = byte(hexDigit(s[i+1])<<4 | hexDigit(s[i+2]))
			i += 2
		}
		b.WriteByte(c)
	}
	return b.String(), nil
}

// hexDigit returns the value of a hexadecimal digit, or -1.
func hexDigit(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c && c <= 'f':
		return int(c-'a') + 10
	case 'A' <= c && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}
