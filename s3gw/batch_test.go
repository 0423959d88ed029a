package s3gw

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
	"github.com/hearthfs/hearth/s3gw/request"
)

// batchAnswer reads the answer to a batch: the line and the bytes of each object. ended: the last
// line is there, and counts them.
func batchAnswer(t *testing.T, body io.Reader) (lines []string, texts [][]byte, ended bool) {
	t.Helper()
	r := bufio.NewReader(body)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return lines, texts, false
		}
		var status, n int
		if line == fmt.Sprintf("end %d\n", len(lines)) {
			_, err := r.ReadByte()
			return lines, texts, err == io.EOF
		}
		if _, err := fmt.Sscanf(line, "%d %d ", &status, &n); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		text := make([]byte, n)
		if _, err := io.ReadFull(r, text); err != nil {
			return lines, texts, false
		}
		lines, texts = append(lines, strings.TrimSpace(line)), append(texts, text)
	}
}

func TestBatch(t *testing.T) {
	// Many objects come in one answer, in their order and byte for byte, with ranges; what is
	// wrong with some of them is said of those, and the others come all the same; in the last
	// round, too, in which other batches' clients hold all the memory there is for reading ahead.
	s := newStand(t, nil, shownLink{bucket: "bucket"})
	big := make([]byte, 2*hearth.BlockSize+100)
	hearthtest.Fill(big, "big", 0, 1)
	s.put("bucket", "mine/big", string(big))
	s.put("bucket", "mine/empty", "")
	s.put("bucket", "secret", "not theirs")
	var body strings.Builder
	type expected struct{ line, text string }
	var want []expected
	add := func(item, line, text string) {
		body.WriteString(item + "\n")
		want = append(want, expected{line, text})
	}
	for i := range 100 {
		key, text := fmt.Sprintf("mine/%03d", i), strings.Repeat(fmt.Sprint(i, " "), 1+i*50)
		s.put("bucket", key, text)
		add(key, fmt.Sprintf("200 %d \"", len(text)), text)
	}
	add("mine/none", "404 0 NoSuchKey", "")
	add("secret", "403 0 AccessDenied", "")
	add("mine/../secret", "403 0 AccessDenied", "")
	add("mine/big", fmt.Sprintf("200 %d \"", len(big)), string(big))
	add("mine/empty", "200 0 \"", "")
	add("mine//001", fmt.Sprintf("200 %d \"", len(strings.Repeat("1 ", 51))), strings.Repeat("1 ", 51)) // versitygw has it so
	at := hearth.BlockSize - 10
	for _, c := range []struct {
		span     string
		from, to int
	}{{fmt.Sprintf("%d-%d", at, at+29), at, at + 30}, {"0-0", 0, 1}, {"-7", len(big) - 7, len(big)}, {fmt.Sprintf("%d-", len(big)-3), len(big) - 3, len(big)}, {"-99999999", 0, len(big)}} {
		add(fmt.Sprintf(`{"key": "mine/big", "range": "bytes=%s"}`, c.span), fmt.Sprintf("206 %d \"", c.to-c.from), string(big[c.from:c.to]))
	}
	add(`{"key": "mine/big", "range": "bytes=99999999-"}`, "416 0 InvalidRange", "")
	add(`{"key": "mine/empty", "range": "bytes=0-1"}`, "416 0 InvalidRange", "")
	ahead := s.pool.Stats().Budget / batchShare
	for round := range 3 {
		if round == 2 && !s.g.lending.TryAcquire(ahead) {
			t.Fatal("memory is counted as lent that is not")
		}
		resp, err := s.client.Do(s.request("mine", "POST", "/bucket?hearth-batch", body.String()))
		if err != nil {
			t.Fatal(err)
		}
		lines, texts, ended := batchAnswer(t, resp.Body)
		resp.Body.Close()
		if resp.StatusCode != 200 || resp.ContentLength >= 0 || resp.Header.Get("Content-Type") != request.BatchType || !ended || len(lines) != len(want) {
			t.Fatalf("%d %v, ended %v, with %d objects", resp.StatusCode, resp.Header, ended, len(lines))
		}
		for i, w := range want {
			if !strings.HasPrefix(lines[i], w.line) || !bytes.Equal(texts[i], []byte(w.text)) {
				t.Errorf("object %d: %s with %d bytes, want %s with %d", i, lines[i], len(texts[i]), w.line, len(w.text))
			}
		}
	}
	s.gets(400, "InvalidRequest", "mine", "POST", "/bucket?hearth-batch", "")
	s.gets(400, "Line 2", "mine", "POST", "/bucket?hearth-batch", "mine/001\n{}\n")
	s.gets(403, "AccessDenied", "other", "POST", "/bucket?hearth-batch", "mine/001")
	s.gets(403, "AccessDenied", "", "POST", "/bucket?hearth-batch", "mine/001")
	s.g.lending.Release(ahead)
	if !s.g.lending.TryAcquire(ahead) {
		t.Error("memory is counted as lent that is not")
	}
}

// breaking is a Getter whose later blocks cannot be had.
type breaking struct {
	hearth.Getter
	at int64
}

func (b *breaking) Get(ctx context.Context, block hearth.Block, off, n int) (*hearth.View, error) {
	if block.Index >= b.at {
		return nil, errors.New("broken")
	}
	return b.Getter.Get(ctx, block, off, n)
}

func TestBatchThatBreaksOff(t *testing.T) {
	// The second block of an object cannot be had once its line is out: the connection is cut,
	// and nobody takes the answer for whole. Where not even the first can, the origin gives it.
	broken := &breaking{at: 1}
	s := newStand(t, func(o *Options) { broken.Getter, o.Source = o.Source, broken }, shownLink{bucket: "bucket"})
	s.put("bucket", "big", strings.Repeat("x", hearth.BlockSize+1))
	s.put("bucket", "small", "of small")
	ask := func() ([]string, bool) {
		resp, err := s.client.Do(s.request("root", "POST", "/bucket?hearth-batch", "small\nbig\nsmall\n"))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		whole, err := io.ReadAll(resp.Body)
		lines, _, ended := batchAnswer(t, bytes.NewReader(whole))
		if ended != (err == nil) {
			t.Errorf("ended %v, and the connection %v", ended, err)
		}
		return lines, ended
	}
	if lines, ended := ask(); ended || len(lines) != 1 {
		t.Errorf("what broke off: %q, ended %v", lines, ended)
	}
	broken.at = 0
	s.went()
	if lines, ended := ask(); !ended || len(lines) != 3 || len(s.went()) != 3 {
		t.Errorf("what the origin gave: %q, ended %v", lines, ended)
	}
	s.block(func(r *http.Request, _ func() (*http.Response, error)) (*http.Response, error) { return nil, errLost })
	if lines, ended := ask(); !ended || len(lines) != 3 || !strings.HasPrefix(lines[1], "500 0 InternalError") {
		t.Errorf("what nobody gave: %q, ended %v", lines, ended)
	}
	if !s.g.lending.TryAcquire(s.pool.Stats().Budget / batchShare) {
		t.Error("memory is counted as lent that is not")
	}
	// The same where nothing is read ahead, as there is no memory for that.
	s.block(nil)
	s.went()
	if lines, ended := ask(); !ended || len(lines) != 3 || len(s.went()) != 3 {
		t.Errorf("what the origin gave late: %q, ended %v", lines, ended)
	}
	broken.at = 1
	if lines, ended := ask(); ended || len(lines) != 1 {
		t.Errorf("what broke off late: %q, ended %v", lines, ended)
	}
}

func TestBatchWhoseReaderGoes(t *testing.T) {
	// A reader goes away in the midst of an answer: all that was read ahead for it is given back.
	s := newStand(t, nil, shownLink{bucket: "bucket"})
	s.put("bucket", "big", strings.Repeat("x", 4*hearth.BlockSize))
	resp, err := s.client.Do(s.request("root", "POST", "/bucket?hearth-batch", strings.Repeat("big\n", 50)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(io.Discard, resp.Body, hearth.BlockSize); err != nil {
		t.Error(err)
	}
	resp.Body.Close()
	s.client.CloseIdleConnections()
	s.g.work.Wait()
	if !s.g.lending.TryAcquire(s.pool.Stats().Budget / batchShare) {
		t.Error("memory is counted as lent that is not")
	}
}
