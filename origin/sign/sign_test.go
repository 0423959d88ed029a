package sign

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
	minio "github.com/minio/minio-go/v7/pkg/signer"
)

// accounts are one with a session token, and one without.
func accounts() []credentials.Value {
	return []credentials.Value{{AccessKeyID: "AK", SecretAccessKey: "secret"}, {AccessKeyID: "AK", SecretAccessKey: "secret", SessionToken: "tok/en=="}}
}

// get is a GET of a path and a query as they go over the wire.
func get(t testing.TB, target string) *http.Request {
	t.Helper()
	r, err := http.NewRequest("GET", "http://127.0.0.1:7070"+target, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// stamped is when a signature was made.
func stamped(t *testing.T, r *http.Request) time.Time {
	t.Helper()
	at, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func TestReadsAreSignedAsMinioSigns(t *testing.T) {
	// The same request, time and account give minio-go's signature, for odd keys and queries; a
	// key that was derived for another day, region or secret is not used.
	var own Signer
	for _, v := range accounts() {
		for _, region := range []string{"us-east-1", "eu-west-3"} {
			for _, target := range []string{"/b/a/b", "/b/" + Encode("sp ace/ü+%41/☃", true), "/b?delimiter=%2F&prefix=p%20q%2F%C3%BC"} {
				theirs := get(t, target)
				theirs.Header.Set("X-Amz-Content-Sha256", EmptyHash)
				theirs = minio.SignV4(*theirs, v.AccessKeyID, v.SecretAccessKey, v.SessionToken, region)
				at := stamped(t, theirs)
				own.Read(get(t, target), v, region, at.Add(-24*time.Hour))
				ours := get(t, target)
				own.Read(ours, v, region, at)
				if got, want := ours.Header.Get("Authorization"), theirs.Header.Get("Authorization"); got != want {
					t.Errorf("%s:\n got %s\nwant %s", target, got, want)
				}
			}
		}
	}
}

func TestAnyRequestIsSignedAsMinioSigns(t *testing.T) {
	// Whatever the method, query and headers, as long as minio-go's way is S3's; and only the
	// signature is added.
	var own Signer
	for _, v := range accounts() {
		for _, target := range []string{"/b/a/b", "/b/" + Encode("sp ace/ü+%41/☃", true), "/b/a+b?uploads", "/b?prefix=a+b%2Bc&list-type=2&prefix=z&empty=&x-id=Y", "/b?a=b/c&a-b=1&a=~"} {
			for _, method := range []string{"GET", "PUT", "POST"} {
				r := get(t, target)
				r.Method = method
				for name, value := range map[string]string{"X-Amz-Content-Sha256": "UNSIGNED-PAYLOAD", "Content-Type": " text/x;  y ", "X-Amz-Meta-A": "q  r", "Content-Md5": "m"} {
					r.Header.Set(name, value)
				}
				r.Header["x-amz-meta-b"] = []string{"1", "2"}
				theirs := r.Clone(t.Context())
				theirs = minio.SignV4(*theirs, v.AccessKeyID, v.SecretAccessKey, v.SessionToken, "eu-west-3")
				r.Header.Set("Range", "bytes=0-1")
				own.Any(r, v, "eu-west-3", stamped(t, theirs))
				if got, want := r.Header.Get("Authorization"), theirs.Header.Get("Authorization"); got != want {
					t.Errorf("%s %s:\n got %s\nwant %s", method, target, got, want)
				}
				if r.URL.RequestURI() != target {
					t.Errorf("%s became %s", target, r.URL.RequestURI())
				}
			}
		}
	}
}

func TestQueriesAreSignedWhateverTheyAre(t *testing.T) {
	// What net/url drops counts too.
	for raw, want := range map[string]string{
		"": "", "uploads": "uploads=", "b=2&a=1&&a=": "a=&a=1&b=2", "a=%zz": "a=%25zz", "a;b=c": "a%3Bb=c", "k=%FF+%2b": "k=%FF%20%2B", "a-b=1&a=2&A=3": "A=3&a=2&a-b=1", "=v": "=v",
	} {
		if got := string(appendQuery(nil, raw)); got != want {
			t.Errorf("%q is signed as %q, want %q", raw, got, want)
		}
	}
}

func FuzzQuery(f *testing.F) {
	// Of what net/url can parse, the signed form is that of net/url, and it is its own signed form.
	for _, raw := range []string{"a=b&c", "a=%2B+&a", "&&=", "a;b", "%", "z=1&a=2&a=1"} {
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		got := string(appendQuery(nil, raw))
		if again := string(appendQuery(nil, got)); again != got {
			t.Errorf("%q: %q, then %q", raw, got, again)
		}
		values, err := url.ParseQuery(raw)
		if err != nil {
			return
		}
		for _, v := range values {
			slices.Sort(v)
		}
		if want := strings.ReplaceAll(values.Encode(), "+", "%20"); got != want && len(values) < 2 {
			t.Errorf("%q: %q, want %q", raw, got, want)
		}
	})
}

func TestEncode(t *testing.T) {
	// Only what is unreserved stays, byte by byte, "/" where it parts a path.
	if got := Encode("aZ0-_.~/ +%\xff☃", true); got != "aZ0-_.~/%20%2B%25%FF%E2%98%83" {
		t.Error(got)
	}
	if got := Encode("a/b", false); got != "a%2Fb" {
		t.Error(got)
	}
}

func BenchmarkAny(b *testing.B) {
	// A signature for an upload of the usual shape.
	var s Signer
	r := get(b, "/bucket/d1/class0001/000123.bin?x-id=PutObject")
	for _, name := range []string{"X-Amz-Content-Sha256", "Content-Type", "X-Amz-Meta-A", "X-Amz-Checksum-Crc32"} {
		r.Header.Set(name, "UNSIGNED-PAYLOAD")
	}
	b.ReportAllocs()
	for b.Loop() {
		s.Any(r, accounts()[0], "us-east-1", time.Time{})
	}
}

func BenchmarkRead(b *testing.B) {
	// A signature for a request of the usual shape.
	var s Signer
	r := get(b, "/bucket/d1/class0001/000123.bin")
	b.ReportAllocs()
	for b.Loop() {
		s.Read(r, accounts()[0], "us-east-1", time.Time{})
	}
}
