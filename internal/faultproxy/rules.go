package faultproxy

import (
	"bytes"
	"fmt"
	"strings"
	"time"
)

// Verbs that requests are counted by.
const (
	// Get is a GET of an object, Head a HEAD, List a GET of a bucket.
	Get, Head, List = "get", "head", "list"
	// Other is everything else: uploads, deletes, questions about buckets.
	Other = "other"
)

// Rule is one way to fail. The zero Rule matches every request and does nothing.
type Rule struct {
	// Verb to match: Get, Head, List, Other. "" means any.
	Verb string `json:"verb,omitempty"`
	// Match is a part of the raw request target ("/bucket/key?query") to match.
	Match string `json:"match,omitempty"`
	// Skip lets this many matching requests through first.
	Skip int64 `json:"skip,omitempty"`
	// Times ends the rule after this many uses. 0 means never.
	Times int64 `json:"times,omitempty"`
	// Percent of matching requests that the rule takes. 0 means all. They are counted out evenly,
	// not drawn.
	Percent int64 `json:"percent,omitempty"`

	// Status answers in the server's place with an S3 error of Code and Message.
	Status  int    `json:"status,omitempty"`
	Code    string `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
	// Refuse resets the connection instead of answering.
	Refuse bool `json:"refuse,omitempty"`
	// Strip removes a header of this name from the request, as if a server did not know it. A
	// signature that covers it is wrong then.
	Strip string `json:"strip,omitempty"`
	// Header is added to the answer, or replaces a header of that name: a
	// Retry-After, another ETag, another Content-Range.
	Header map[string]string `json:"header,omitempty"`
	// Whole turns 206 into 200 and removes the Content-Range, as if a server did not know ranges.
	Whole bool `json:"whole,omitempty"`
	// Shift moves the Content-Range by this many bytes. The total in it stays.
	Shift int64 `json:"shift,omitempty"`
	// Delay of the first byte, beside the proxy's own.
	Delay Duration `json:"delay,omitempty"`
	// Until holds the first byte back until it is closed. nil means no wait.
	Until <-chan struct{} `json:"-"`

	// Body spoils the answer's body at byte At: one of the constants below.
	Body string `json:"body,omitempty"`
	At   int64  `json:"at,omitempty"`

	seen, used int64 // guarded by the proxy's lock
}

// Ways to spoil a body at an offset.
const (
	// Reset ends the connection by RST, Truncate by FIN.
	Reset, Truncate = "reset", "truncate"
	// Endless sends the whole body without a length, or with the one that Header claims, and then
	// line feeds until the client goes away. At is not used.
	Endless = "endless"
	// Stall sends nothing more until the client goes away.
	Stall = "stall"
	// Flip inverts the lowest bit of one byte.
	Flip = "flip"
)

// Duration is a time.Duration that is written in JSON as "20ms".
type Duration time.Duration

// MarshalText writes it as time.Duration does.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	*d = Duration(v)
	return err
}

// Skewed answers as S3 does if the client's clock is 20 minutes off.
func Skewed() Rule {
	return Rule{Status: 403, Code: "RequestTimeTooSkewed", Message: "The difference between the request time and the server's time is too large."}
}

// Denied answers AccessDenied for a verb.
func Denied(verb string) Rule {
	return Rule{Verb: verb, Status: 403, Code: "AccessDenied", Message: "Access Denied."}
}

// AddRule arms a rule, after those that are armed already.
func (p *Proxy) AddRule(r Rule) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = append(p.rules, &r)
	p.armed.Store(true)
}

// ClearRules disarms all rules.
func (p *Proxy) ClearRules() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = nil
	p.armed.Store(false)
}

// take returns the rule that a request meets.
func (p *Proxy) take(verb, target string) *Rule {
	if !p.armed.Load() {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.rules {
		if r.Verb != "" && r.Verb != verb || !strings.Contains(target, r.Match) || r.Times > 0 && r.used >= r.Times {
			continue
		}
		r.seen++
		n := r.seen - r.Skip
		if n <= 0 || r.Percent > 0 && n*r.Percent/100 == (n-1)*r.Percent/100 {
			continue
		}
		r.used++
		return r
	}
	return nil
}

// answer is the message that is sent in place of the server's.
func (r *Rule) answer(method string) []byte {
	body := fmt.Sprintf("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>%s</Code><Message>%s</Message><RequestId>faultproxy</RequestId></Error>", r.Code, r.Message)
	var head strings.Builder
	fmt.Fprintf(&head, "HTTP/1.1 %d %s\r\nContent-Type: application/xml\r\nContent-Length: %d\r\n", r.Status, "Canned", len(body))
	for k, v := range r.Header {
		fmt.Fprintf(&head, "%s: %s\r\n", k, v)
	}
	head.WriteString("\r\n")
	if method == "HEAD" {
		body = ""
	}
	return []byte(head.String() + body)
}

// strip edits the head of a request. A nil Rule leaves it.
func (r *Rule) strip(head []byte) []byte {
	if r == nil || r.Strip == "" {
		return head
	}
	var kept []byte
	for line := range bytes.Lines(head) {
		if name, _, _ := bytes.Cut(line, []byte(":")); !bytes.EqualFold(name, []byte(r.Strip)) {
			kept = append(kept, line...)
		}
	}
	return kept
}

// spoil edits the head of an answer, to fit what happens to its body.
func (r *Rule) spoil(head []byte, body string) []byte {
	if len(r.Header) == 0 && !r.Whole && r.Shift == 0 && body != Endless {
		return head
	}
	lines := strings.Split(strings.TrimSuffix(string(head), "\r\n\r\n"), "\r\n")
	kept := lines[:1]
	for _, l := range lines[1:] {
		name, _, _ := strings.Cut(l, ":")
		replaced := r.Whole && strings.EqualFold(name, "Content-Range") ||
			body == Endless && (strings.EqualFold(name, "Content-Length") || strings.EqualFold(name, "Transfer-Encoding"))
		for k := range r.Header {
			replaced = replaced || strings.EqualFold(k, name)
		}
		if !replaced {
			kept = append(kept, r.shift(l))
		}
	}
	if r.Whole {
		kept[0] = strings.Replace(kept[0], " 206 Partial Content", " 200 OK", 1)
	}
	if body == Endless && r.Header["Content-Length"] == "" {
		kept = append(kept, "Connection: close") // which is the only sign of the body's end
	}
	for k, v := range r.Header {
		kept = append(kept, k+": "+v)
	}
	return []byte(strings.Join(kept, "\r\n") + "\r\n\r\n")
}

// shift moves the range that a Content-Range names.
func (r *Rule) shift(line string) string {
	var first, last int64
	var total string
	name, value, _ := strings.Cut(line, ": ")
	if n, _ := fmt.Sscanf(value, "bytes %d-%d/%s", &first, &last, &total); r.Shift == 0 || n != 3 || !strings.EqualFold(name, "Content-Range") {
		return line
	}
	return fmt.Sprintf("%s: bytes %d-%d/%s", name, first+r.Shift, last+r.Shift, total)
}
