package clients

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
)

// Be is the process of clients: a Work comes as a line of JSON, a Sum goes out as one. A crowd
// says "stands" instead, stays until in ends, and says how many did.
func Be(ctx context.Context, in io.Reader, out io.Writer) error {
	var w Work
	if err := json.NewDecoder(in).Decode(&w); err != nil {
		return fmt.Errorf("work: %w", err)
	}
	if w.Crowd == "" {
		sum, err := w.Do(ctx)
		if err != nil {
			return err
		}
		return json.NewEncoder(out).Encode(sum)
	}
	ctx, stop := context.WithCancel(ctx)
	go func() { // ends with in, which nothing is left for
		_, _ = io.Copy(io.Discard, in)
		stop()
	}()
	stayed, err := w.Stay(ctx, func() { _, _ = fmt.Fprintln(out, "stands") }) // or nobody reads it
	if err == nil {
		_, err = fmt.Fprintln(out, stayed)
	}
	return err
}
