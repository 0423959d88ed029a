package request

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	// maxItems bounds the objects of one batch.
	maxItems = 10_000
	// MaxBatchBytes bounds the body of a batch: 10,000 keys of 1,024 bytes, and room for their
	// encoding.
	MaxBatchBytes = 16 << 20
	// maxLine holds a key of 1,024 bytes, each written as \uXXXX, and what stands around it.
	maxLine = 8 << 10
)

// Item is one object of a batch.
type Item struct {
	Key string `json:"key"`
	// Range is "" for the whole object, else one range of bytes in the form of the Range header.
	Range string `json:"range"`
}

// Batch reads the body of POST /BUCKET?hearth-batch: a line for each object, at most 10,000 and 16
// MiB, ended by "\n" or "\r\n". Empty lines are skipped. A line is the key itself, or
//
//	{"key": KEY, "range": "bytes=0-99"}
//
// Keys that begin with a brace, or have a line end in them, must use the second form; keys that are
// not UTF-8 cannot. The error is a *Error with the number of the line; then nothing of the batch is
// answered.
func Batch(body io.Reader) ([]Item, error) {
	s := bufio.NewScanner(&bounded{r: body, left: MaxBatchBytes})
	s.Buffer(make([]byte, 0, maxLine), maxLine)
	var items []Item
	for line := 1; s.Scan(); line++ {
		text := s.Bytes()
		switch {
		case len(text) == 0:
			continue
		case len(items) == maxItems:
			return nil, New("InvalidRequest", "A batch has at most %d objects", maxItems)
		}
		it, f := item(text)
		if f != nil {
			f.Message = "Line " + strconv.Itoa(line) + ": " + f.Message
			return nil, f
		}
		items = append(items, it)
	}
	switch err := s.Err(); {
	case errors.Is(err, errLong):
		return nil, Of(err, "InvalidRequest", "A batch has at most %d bytes", MaxBatchBytes)
	case errors.Is(err, bufio.ErrTooLong):
		return nil, Of(err, "InvalidRequest", "A line of a batch has at most %d bytes", maxLine)
	case err != nil:
		return nil, Of(err, "IncompleteBody", "The batch did not come as a whole")
	case len(items) == 0:
		return nil, New("InvalidRequest", "The batch asks for nothing")
	}
	return items, nil
}

func item(line []byte) (Item, *Error) {
	it := Item{}
	if line[0] != '{' {
		it.Key = string(line)
	} else if f := it.decode(line); f != nil {
		return Item{}, f
	}
	switch {
	case it.Key == "":
		return Item{}, New("InvalidArgument", "there is no key")
	case len(it.Key) > maxKey:
		return Item{}, New("KeyTooLongError", "Your key is too long")
	case it.Range != "" && !oneRange(it.Range):
		return Item{}, New("InvalidArgument", "the range is not of the form bytes=FIRST-LAST")
	}
	return it, nil
}

// decode reads an item in JSON.
func (it *Item) decode(line []byte) *Error {
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	err := d.Decode(it)
	if err == nil {
		if _, err = d.Token(); err == io.EOF {
			err = nil
		} else if err == nil {
			err = errors.New("something stands behind it")
		}
	}
	if err == nil && (!utf8.Valid(line) || strings.Contains(it.Key, "\ufffd") && !spelled(line)) {
		err = errors.New("the key is not UTF-8") // the decoder would have replaced a byte
	}
	if err != nil {
		return Of(err, "InvalidArgument", `it begins with a brace, and is no {"key": KEY, "range": RANGE}`)
	}
	return nil
}

// spelled reports whether the replacement character was written as itself. The decoder also makes
// it of what JSON cannot say: half of a surrogate pair.
func spelled(line []byte) bool {
	l := bytes.ToLower(line)
	return !bytes.Contains(l, []byte(`\ud8`)) && !bytes.Contains(l, []byte(`\ud9`)) && !bytes.Contains(l, []byte(`\uda`)) &&
		!bytes.Contains(l, []byte(`\udb`)) && !bytes.Contains(l, []byte(`\udc`)) && !bytes.Contains(l, []byte(`\udd`)) &&
		!bytes.Contains(l, []byte(`\ude`)) && !bytes.Contains(l, []byte(`\udf`))
}
