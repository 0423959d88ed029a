package sign

import (
	"net/http"
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

func TestEncode(t *testing.T) {
	// Only what is unreserved stays, byte by byte, "/" where it parts a path.
	if got := Encode("aZ0-_.~/ +%\xff☃", true); got != "aZ0-_.~/%20%2B%25%FF%E2%98%83" {
		t.Error(got)
	}
	if got := Encode("a/b", false); got != "a%2Fb" {
		t.Error(got)
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
