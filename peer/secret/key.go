package secret

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"unicode"
	"unicode/utf8"
)

const (
	// minKeyBytes is the least size of a random key: as strong as everything derived from
	// it.
	minKeyBytes = 32
	// minDistinct byte values are in every random key of that length, for all practical
	// purposes. A key that somebody typed to get it over with has fewer.
	minDistinct = 16
	// minWords is for a pass phrase: six words drawn from a list of 7,776 are 77 bits.
	minWords = 6
	// minPhrase characters make sure that the words are words.
	minPhrase = 24
	// maxText bounds a key's text, in bytes. A longer file is not a key.
	maxText = 4 << 10
	// openMode has the permission bits that the file of a key must not have. Its group
	// may read it, as a service's own group does. Nobody else may do anything with it.
	openMode = 0o027
)

var (
	errNoText   = errors.New("it is empty")
	errNotText  = errors.New("it holds bytes that are no printable text (write a random key as hex: hearth ring key)")
	errTooLong  = errors.New("it is longer than 4 KiB, so it is no key (is this the right file?)")
	errRepeats  = errors.New("it repeats a few bytes, so it is easily guessed (make one: hearth ring key)")
	errOddHex   = errors.New("it has an odd number of hex digits, so one is lost (write it again as it was)")
	errOneWord  = errors.New("it is neither hex nor base64 in one line, and a pass phrase has at least six words (make a key: hearth ring key)")
	errFewWords = errors.New("a pass phrase has at least six different words and 24 characters (or make a key: hearth ring key)")
)

// Key is a cluster key. No way of printing shows it.
type Key struct {
	// A func hides the key from fmt. fmt does not call Format for a Key in an unexported
	// field, and follows pointers if the verb does not fit them. nil means that there is
	// no key.
	of func() material
}

type material struct {
	bytes  []byte
	phrase bool // guessable, so that each guess must cost something
}

func newKey(m material) Key { return Key{func() material { return m }} }

// Format prints no key, with any verb.
func (k Key) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "(cluster key, not shown)") }

// Generate makes a random key of 32 bytes in the form that its file has: a line of hex.
func Generate() string {
	key := make([]byte, minKeyBytes)
	_, _ = rand.Read(key) // does not fail
	return hex.EncodeToString(key) + "\n"
}

// Parse reads a key's text, without the white space around it. One word is hex or base64
// (standard or URL alphabet, padded or not) of at least 32 bytes. Several words are a
// pass phrase, of at least six different words and 24 characters. Any white space in it
// counts as one space. No error tells more about the text than its length.
func Parse(text string) (Key, error) {
	k, err := parse(text)
	if err != nil {
		return Key{}, fmt.Errorf("read the cluster key: %w", err)
	}
	return k, nil
}

func parse(text string) (Key, error) {
	if len(text) > maxText {
		return Key{}, errTooLong
	}
	odd := func(r rune) bool { return !unicode.IsPrint(r) && !unicode.IsSpace(r) }
	if !utf8.ValidString(text) || strings.ContainsFunc(text, odd) {
		return Key{}, errNotText
	}
	words := strings.Fields(text)
	switch len(words) {
	case 0:
		return Key{}, errNoText
	case 1:
		return parseRandom(words[0])
	}
	phrase := strings.Join(words, " ")
	different := map[string]bool{}
	for _, w := range words {
		different[w] = true
	}
	if len(different) < minWords || utf8.RuneCountInString(phrase) < minPhrase {
		return Key{}, errFewWords
	}
	return newKey(material{bytes: []byte(phrase), phrase: true}), nil
}

// parseRandom takes a word of hex digits alone for hex, since base64 of a random key has
// other characters, too. So hex that lost a digit is an error, and not another key.
func parseRandom(word string) (Key, error) {
	form, decode, malformed := "base64", decodeBase64, errOneWord
	if strings.Trim(word, "0123456789abcdefABCDEF") == "" {
		form, decode, malformed = "hex", hex.DecodeString, errOddHex
	}
	key, err := decode(word)
	if err != nil {
		return Key{}, malformed // the library's error quotes the key
	}
	if len(key) < minKeyBytes {
		return Key{}, fmt.Errorf("it is %d bytes as %s, and at least %d are needed (make one: hearth ring key)", len(key), form, minKeyBytes)
	}
	different := map[byte]bool{}
	for _, b := range key {
		different[b] = true
	}
	if len(different) < minDistinct {
		return Key{}, errRepeats
	}
	return newKey(material{bytes: key}), nil
}

func decodeBase64(word string) ([]byte, error) {
	word = strings.TrimRight(word, "=")
	if strings.ContainsAny(word, "-_") {
		return base64.RawURLEncoding.DecodeString(word)
	}
	return base64.RawStdEncoding.DecodeString(word)
}

// ReadFile reads a key from a file that only its owner may change, and that only its
// owner and its group may read.
func ReadFile(path string) (Key, error) {
	text, err := readText(path)
	if err != nil {
		return Key{}, fmt.Errorf("read the cluster key: %w", err)
	}
	k, err := parse(text)
	if err != nil {
		return Key{}, fmt.Errorf("read the cluster key in %s: %w", path, err)
	}
	return k, nil
}

func readText(path string) (string, error) {
	// Without O_NONBLOCK, opening a FIFO without a writer would never end.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // it was only read
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is no regular file", path)
	}
	if mode := info.Mode().Perm(); mode&openMode != 0 {
		return "", fmt.Errorf("%s has mode %04o, so that others may read or change it (chmod 600 %s; for a secret of Kubernetes: defaultMode: 0400)", path, mode, path)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxText+1))
	if err != nil {
		return "", fmt.Errorf("read %s: %w", path, err)
	}
	return string(text), nil
}

// ReadEnv reads a key from an environment variable.
func ReadEnv(variable string) (Key, error) {
	text, ok := os.LookupEnv(variable)
	if !ok {
		return Key{}, fmt.Errorf("read the cluster key: %s is not set", variable)
	}
	k, err := parse(text)
	if err != nil {
		return Key{}, fmt.Errorf("read the cluster key in $%s: %w", variable, err)
	}
	return k, nil
}
