package s3gw

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hearthfs/hearth/s3gw/request"
)

// CORS: the answers to browsers that ask whether a page may use the endpoint.
//
// A rule lets pages of some origins use some methods; the first rule that fits counts. A preflight
// is answered by the rule alone: it has no signature, and reaches neither the cache nor the bucket.
// Any other request is answered as without rules, plus headers that tell the browser whether to
// show the answer to the page. So rules guard the people at browsers, never the data.
//
// The answers follow "How does Amazon S3 evaluate the CORS configuration on a bucket?".

// maxHeaders bounds what one preflight asks for; browsers name each header once.
const maxHeaders = 100

// CORSRule is what pages of some origins may do.
type CORSRule struct {
	// Origins as browsers write them (https://a.example:8443), each with at most one * for any run
	// of characters; "*" means all.
	Origins []string
	// Methods are among GET, HEAD, PUT, POST and DELETE; none means GET and HEAD.
	Methods []string
	// Headers are those that a page may send, * as in Origins, case ignored; none means any.
	Headers []string
	// Expose are the answer's headers that a page may see, besides the usual few.
	Expose []string
	// MaxAge is how long a browser may cache a preflight, in whole seconds; 0 lets the browser
	// choose.
	MaxAge time.Duration
}

// CORSRules are the rules of an endpoint, in order. They do not change.
type CORSRules struct {
	rules []compiled
}

// compiled is a rule with the texts of its answers.
type compiled struct {
	CORSRule
	methods, expose, age string
}

// newCORS checks rules; the error names the first bad one. Without rules no page may do anything.
func newCORS(rules []CORSRule) (*CORSRules, error) {
	c := &CORSRules{}
	for i, r := range rules {
		if len(r.Methods) == 0 {
			r.Methods = []string{http.MethodGet, http.MethodHead}
		}
		if len(r.Headers) == 0 {
			r.Headers = []string{"*"}
		}
		if err := r.check(); err != nil {
			return nil, fmt.Errorf("CORS rule %d: %w", i+1, err)
		}
		p := compiled{CORSRule: r, methods: strings.Join(r.Methods, ", "), expose: strings.Join(r.Expose, ", ")}
		if r.MaxAge > 0 {
			p.age = strconv.FormatInt(int64(r.MaxAge/time.Second), 10)
		}
		c.rules = append(c.rules, p)
	}
	return c, nil
}

func (r *CORSRule) check() error {
	if len(r.Origins) == 0 {
		return fmt.Errorf("it names no origin")
	}
	for _, o := range r.Origins {
		if o == "" || strings.Count(o, "*") > 1 || strings.ContainsFunc(o, unprintable) {
			return fmt.Errorf("%q is no origin (one * at most)", o)
		}
		if o != "*" && o != "null" && !strings.Contains(o, "://") {
			return fmt.Errorf("the origin %q needs its scheme, such as https://%s", o, o)
		}
	}
	for _, m := range r.Methods {
		switch m {
		case http.MethodGet, http.MethodHead, http.MethodPut, http.MethodPost, http.MethodDelete:
		default:
			return fmt.Errorf("%q is none of GET, HEAD, PUT, POST and DELETE", m)
		}
	}
	for _, h := range slices.Concat(r.Headers, r.Expose) {
		if !token(h) || strings.Count(h, "*") > 1 {
			return fmt.Errorf("%q is no header", h)
		}
	}
	if r.MaxAge < 0 {
		return fmt.Errorf("a preflight cannot be remembered for %v", r.MaxAge)
	}
	return nil
}

func unprintable(r rune) bool { return r <= ' ' || r >= 0x7f }

// token reports whether s can name a header (RFC 9110, 5.6.2).
func token(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool { return unprintable(r) || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r) })
}

// Preflight answers an OPTIONS request. An error is a *request.Error, and then nothing was written.
func (c *CORSRules) Preflight(w http.ResponseWriter, r *http.Request) error {
	origin, method := one(r.Header, "Origin"), one(r.Header, "Access-Control-Request-Method")
	vary(w.Header())
	switch {
	case origin == "":
		return request.New("BadRequest", "Insufficient information. Origin request header needed.")
	case method == "":
		return request.New("BadRequest", "Access-Control-Request-Method is needed, once.")
	}
	asked, ok := corsNames(r.Header["Access-Control-Request-Headers"])
	if !ok {
		return request.New("BadRequest", "Access-Control-Request-Headers is no list of headers.")
	}
	rule := c.find(origin, method, asked)
	if rule == nil {
		return &request.Error{Code: "AccessForbidden", Status: http.StatusForbidden,
			Message: "CORSResponse: This CORS request is not allowed: no rule has this origin, method and these headers."}
	}
	rule.tell(w.Header(), origin)
	if len(asked) > 0 {
		w.Header().Set("Access-Control-Allow-Headers", strings.Join(asked, ", "))
	}
	w.Header().Set("Content-Length", "0")
	w.WriteHeader(http.StatusOK)
	return nil
}

// Allow adds the headers that a page's browser needs to an answer, in place of what the bucket's
// own rules said. If the request names no origin, or one that no rule allows, it adds only Vary.
func (c *CORSRules) Allow(h http.Header, r *http.Request) {
	if len(c.rules) == 0 {
		return
	}
	for name := range h {
		if strings.HasPrefix(name, "Access-Control-") {
			delete(h, name)
		}
	}
	vary(h)
	origin := one(r.Header, "Origin")
	if origin == "" {
		return
	}
	if rule := c.find(origin, r.Method, nil); rule != nil {
		rule.tell(h, origin)
	}
}

// vary keeps shared caches from giving one page's answer to another.
func vary(h http.Header) {
	for _, name := range [...]string{"Origin", "Access-Control-Request-Method", "Access-Control-Request-Headers"} {
		if !slices.Contains(h["Vary"], name) {
			h.Add("Vary", name)
		}
	}
}

// one returns the value of a header that occurs once, else "".
func one(h http.Header, name string) string {
	if v := h[name]; len(v) == 1 {
		return v[0]
	}
	return ""
}

// corsNames reads a list of headers, as the page's browser wrote them.
func corsNames(values []string) ([]string, bool) {
	var all []string
	for _, v := range values {
		for v != "" {
			var name string
			name, v, _ = strings.Cut(v, ",")
			if name = strings.Trim(name, " \t"); name == "" {
				continue
			}
			if !token(name) || len(all) == maxHeaders {
				return nil, false
			}
			all = append(all, name)
		}
	}
	return all, true
}

func (c *CORSRules) find(origin, method string, asked []string) *compiled {
	for i := range c.rules {
		if p := &c.rules[i]; p.fits(origin, method, asked) {
			return p
		}
	}
	return nil
}

func (p *compiled) fits(origin, method string, asked []string) bool {
	if !slices.Contains(p.Methods, method) || !slices.ContainsFunc(p.Origins, func(o string) bool { return match(o, origin) }) {
		return false
	}
	for _, name := range asked {
		name = strings.ToLower(name)
		if !slices.ContainsFunc(p.Headers, func(h string) bool { return match(strings.ToLower(h), name) }) {
			return false
		}
	}
	return true
}

// match matches a pattern in which one * stands for any run of characters.
func match(pattern, s string) bool {
	before, behind, star := strings.Cut(pattern, "*")
	if !star {
		return pattern == s
	}
	return len(s) >= len(before)+len(behind) && strings.HasPrefix(s, before) && strings.HasSuffix(s, behind)
}

// tell writes what a rule allows. As at Amazon, only origins that are named may send credentials.
func (p *compiled) tell(h http.Header, origin string) {
	if slices.Contains(p.Origins, "*") {
		h.Set("Access-Control-Allow-Origin", "*")
	} else {
		h.Set("Access-Control-Allow-Origin", origin)
		h.Set("Access-Control-Allow-Credentials", "true")
	}
	h.Set("Access-Control-Allow-Methods", p.methods)
	if p.expose != "" {
		h.Set("Access-Control-Expose-Headers", p.expose)
	}
	if p.age != "" {
		h.Set("Access-Control-Max-Age", p.age)
	}
}
