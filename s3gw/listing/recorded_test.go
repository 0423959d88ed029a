package listing

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hearthfs/hearth"
	"github.com/hearthfs/hearth/internal/hearthtest"
)

// recording holds the answers of a server. testdata has one for each server, made by
// HEARTH_RECORD=yes go test ./s3gw/listing, which asks the servers again.
type recording struct {
	// Keys are the keys of each bucket, in the order in which they were put.
	Keys map[string][]string
	// Answers belong to the queries, in the same order.
	Answers []recorded
}

type recorded struct {
	Bucket, Query string
	Status        int
	Body          string
}

// recordedKeys returns the keys of a bucket that XML can carry, and of one that it cannot.
func recordedKeys() map[string][]string {
	return map[string][]string{
		"plain": {"a-b", "a/b", "a/b2", "a/c/d", "a/c/e", "a0", "b/", "b/x", "sp ace", "sp aced/a b", "plus+", "pct%2F", `amp&<>"'`, "uml\u00fc", "uml\u00fct/x", "tilde~",
			"star*", "semi;colon", "eq=", "q?", "hash#", "at@", "c:d", "dollar$", "bang!", "paren()", "br[]{}", "pipe|^`", ",comma", "back\\slash", "tab\tx",
			"nl\nx", "cr\rx", "del\x7f", "nel\u0085", "emoji\U0001F600", "z/y/x/w", "z/y/x.w", "z/y-x", ".hidden", "..two", "UPPER", "_", "-"},
		"control": {"ctl\x01x", "ctl\x1f/x", "uffff\uffff", "z"},
	}
}

// recordedQueries are sent to each bucket.
func recordedQueries() []string {
	return []string{
		"list-type=2&encoding-type=url", // the first: it lists the objects
		"list-type=2", "", "encoding-type=url", "list-type=2&fetch-owner=true&prefix=a", "list-type=2&fetch-owner=false&prefix=a",
		"list-type=2&delimiter=%2F", "delimiter=%2F&max-keys=9", "delimiter=%2F&encoding-type=url&max-keys=9", "delimiter=&max-keys=&prefix=a",
		"list-type=2&max-keys=0", "max-keys=0&delimiter=%2F", "list-type=2&max-keys=1", "max-keys=3", "max-keys=3&delimiter=%2F", "list-type=2&max-keys=5&delimiter=%2F",
		"max-keys=2&delimiter=%2F&encoding-type=url&prefix=sp", "max-keys=2000&prefix=z", "list-type=2&prefix=a%2F&max-keys=4", "list-type=2&prefix=a%2F&max-keys=3", "list-type=2&prefix=a%2F",
		"list-type=2&prefix=a%2Fb", "list-type=2&prefix=a%2Fb&delimiter=%2F", "list-type=2&prefix=a%2Fc&delimiter=%2F", "prefix=a&delimiter=%2F", "prefix=z%2Fy&delimiter=%2F",
		"prefix=z%2Fy", "prefix=z%2Fy%2F&delimiter=%2F", "list-type=2&prefix=b%2F", "list-type=2&prefix=b%2F&delimiter=%2F", "list-type=2&prefix=b%2F&start-after=b%2F",
		"list-type=2&prefix=none%2F&delimiter=%2F", "list-type=2&prefix=none", "list-type=2&prefix=UPPER", "list-type=2&prefix=sp%20ace&encoding-type=url",
		"list-type=2&prefix=uml%C3%BC", "list-type=2&start-after=a%2Fb&max-keys=3", "list-type=2&start-after=a%2F&max-keys=3", "list-type=2&start-after=a&max-keys=3",
		"list-type=2&start-after=a&delimiter=%2F&max-keys=9", "list-type=2&start-after=a-b&delimiter=%2F&max-keys=2", "list-type=2&start-after=zz", "list-type=2&start-after=sp%20a&encoding-type=url&prefix=sp",
		"list-type=2&prefix=b&start-after=a", "list-type=2&prefix=b&start-after=c", "marker=a%2Fb&max-keys=4", "marker=a%2F&delimiter=%2F&max-keys=4",
		"marker=a&delimiter=%2F&max-keys=4&encoding-type=url", "marker=a%2Fc%2F&delimiter=%2F&prefix=a%2F", "marker=a%2Fb&delimiter=%2F&prefix=a%2F", "marker=z%2Fy-x",
		"marker=zz", "marker=b%2F&prefix=b%2F", "max-keys=-1", "max-keys=x", "list-type=2&max-keys=-5",
		// Pages of ours that had to pass: ForOrigin makes the query to the server.
		"list-type=2&delimiter=%2F&max-keys=4&continuation-token=" + tokenOf("a/"), "list-type=2&max-keys=4&continuation-token=" + tokenOf("a/b"),
		"list-type=2&delimiter=%2F&prefix=a%2F&continuation-token=" + tokenOf("a/c/"), "list-type=2&prefix=b%2F&delimiter=%2F&continuation-token=" + tokenOf("b/"),
		"list-type=2&delimiter=%2F&max-keys=4&encoding-type=url&continuation-token=" + tokenOf("sp ace"),
	}
}

// record makes a server's recording again, with the server of this machine.
func record(t *testing.T, name string, s3 *hearthtest.S3) {
	r := recording{Keys: recordedKeys()}
	if name == "versitygw" {
		delete(r.Keys, "control") // the server garbles them
	}
	for _, bucket := range slices.Sorted(maps.Keys(r.Keys)) {
		if err := s3.CreateBucket(t.Context(), bucket); err != nil {
			t.Fatal(err)
		}
		for _, key := range r.Keys[bucket] {
			if _, err := s3.PutBytes(t.Context(), bucket, key, []byte(strings.Trim(key, "/b"))); err != nil {
				t.Fatalf("%q: %v", key, err)
			}
		}
		for _, query := range recordedQueries() {
			r.Answers = append(r.Answers, ask(t, s3, bucket, query))
		}
	}
	var text bytes.Buffer
	packed := gzip.NewWriter(&text)
	if err := errors.Join(json.NewEncoder(packed).Encode(r), packed.Close()); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join("testdata", name+".json.gz"), text.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

func startMinIO(t *testing.T) *hearthtest.S3 {
	tool, err := hearthtest.Tool("minio")
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	c := exec.Command(tool, "server", "--quiet", "--address", address, t.TempDir())
	c.Env = append(os.Environ(), "MINIO_ROOT_USER=recording", "MINIO_ROOT_PASSWORD=recording", "MINIO_BROWSER=off", "MINIO_UPDATE=off")
	exited, output, err := hearthtest.StartChild(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Kill()
		<-exited
	})
	s3 := &hearthtest.S3{Endpoint: "http://" + address, Region: "us-east-1", AccessKey: "recording", SecretKey: "recording"}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for s3.CreateBucket(ctx, "ready") != nil { // the client waits between its attempts
		if ctx.Err() != nil {
			t.Fatal(output())
		}
	}
	return s3
}

func ask(t *testing.T, s3 *hearthtest.S3, bucket, query string) recorded {
	values, err := url.ParseQuery(ForOrigin(query))
	if err != nil {
		t.Fatal(err)
	}
	req, err := s3.Request(t.Context(), http.MethodGet, bucket, "", values)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return recorded{bucket, query, resp.StatusCode, string(body)}
}

// recordings calls each for every answer of a server to a query that Parse takes, with ours; a
// query that is refused must have been refused.
func recordings(t *testing.T, name string, each func(t *testing.T, r recorded, q Query, ours []byte)) {
	text, err := os.ReadFile(filepath.Join("testdata", name+".json.gz"))
	if err != nil {
		t.Fatal(err)
	}
	packed, err := gzip.NewReader(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	var r recording
	if err := json.NewDecoder(packed).Decode(&r); err != nil {
		t.Fatal(err)
	}
	owner := regexp.MustCompile(`<Owner><ID>([^<]*)</ID>(<DisplayName>([^<]*)</DisplayName>)?</Owner>`)
	trees := map[string]*tree{}
	answered := 0
	for _, a := range r.Answers {
		if trees[a.Bucket] == nil {
			trees[a.Bucket] = recordedTree(t, a)
		}
		t.Run(a.Bucket+"?"+a.Query, func(t *testing.T) {
			q, err := Parse(a.Query)
			if err != nil && (errors.Is(err, ErrUnsure) || a.Status != 400) {
				t.Fatalf("%v; the server answered %d", err, a.Status)
			}
			if err != nil {
				return
			}
			bucket := Bucket{Name: a.Bucket, Class: "STANDARD"}
			// As at the endpoint: the owner of the objects came from the origin.
			if told := owner.FindStringSubmatch(a.Body); told != nil {
				bucket.Owner = Owner{ID: told[1], Name: told[3]}
			}
			ours, err := Answer(t.Context(), trees[a.Bucket], bucket, q, nil)
			if a.Bucket == "control" && !q.URL && errors.Is(err, ErrUnsure) {
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			answered++
			each(t, a, q, ours)
		})
	}
	if answered < 50 {
		t.Errorf("%d answers were compared", answered)
	}
}

// recordedTree builds the tree of a bucket from its first answer.
func recordedTree(t *testing.T, a recorded) *tree {
	p := read(t, []byte(a.Body))
	var objects []*hearth.Object
	for _, c := range p.Contents {
		key := c.Key
		if p.EncodingType == "url" {
			key = unescaped(t, key)
		}
		at, err := time.Parse(time.RFC3339Nano, c.LastModified)
		if err != nil {
			t.Fatal(err)
		}
		objects = append(objects, &hearth.Object{Key: key, Size: c.Size, ETag: strings.Trim(c.ETag, `"`), ModTime: at})
	}
	return treeOf(objects...)
}

func TestMinIO(t *testing.T) {
	// Our documents are MinIO's, byte for byte. What differs: tokens and markers, each server's own, and a marker that Amazon does not tell
	// without a delimiter.
	marker := regexp.MustCompile(`(<NextMarker>[^<]*?)(\[|%5B)minio_cache[^<]*(</NextMarker>)`)
	token := regexp.MustCompile(`(<NextContinuationToken>)[^<]*(</NextContinuationToken>)`)
	asked := regexp.MustCompile(`<StartAfter>[^<]*</StartAfter>`)
	absent := regexp.MustCompile(`<NextMarker>[^<]*</NextMarker>`)
	if os.Getenv("HEARTH_RECORD") != "" {
		record(t, "minio", startMinIO(t))
	}
	recordings(t, "minio", func(t *testing.T, r recorded, q Query, ours []byte) {
		want := token.ReplaceAllString(marker.ReplaceAllString(r.Body, "$1$3"), "$1$2")
		want = strings.Replace(want, "<MaxKeys>2000<", "<MaxKeys>1000<", 1) // as Amazon and versitygw tell it
		if q.Delimiter == "" {
			want = absent.ReplaceAllString(want, "")
		}
		if q.Token != "" {
			want = asked.ReplaceAllString(want, "<ContinuationToken>"+q.Token+"</ContinuationToken>")
		}
		if got := token.ReplaceAllString(string(ours), "$1$2"); got != want {
			differ(t, got, want)
		}
	})
}

func TestVersityGW(t *testing.T) {
	// Our documents tell what versitygw's do: keys, groups, sizes, ETags, times in seconds, counts, where the next page begins. It knows no
	// encoding-type, and what it tells of checksums and echoes of its own are not compared.
	if os.Getenv("HEARTH_RECORD") != "" {
		record(t, "versitygw", &hearthtest.StartS3(t).S3)
	}
	recordings(t, "versitygw", func(t *testing.T, r recorded, q Query, ours []byte) {
		got, want := read(t, ours), read(t, []byte(r.Body))
		if q.URL {
			got = decoded(t, ours)
		}
		for i := range got.Contents {
			got.Contents[i].LastModified = strings.Replace(got.Contents[i].LastModified, ".000Z", "Z", 1)
		}
		want.ContinuationToken = "" // it echoes start-after there
		if q.Token != "" {
			want.ContinuationToken, want.StartAfter = q.Token, ""
		}
		if want.NextContinuationToken != "" {
			key, _ := Token(got.NextContinuationToken)
			got.NextContinuationToken = key // its tokens are the keys
		}
		if r.Query == "max-keys=2&delimiter=%2F&encoding-type=url&prefix=sp" {
			want.IsTruncated, want.NextMarker = false, "" // nothing follows: it takes a group for one more than it is
		}
		if q.Delimiter == "" {
			want.NextMarker = ""
		}
		got.EncodingType = ""
		if !reflect.DeepEqual(got, want) {
			differ(t, fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want))
		}
	})
}

// differ reports where two answers begin to differ.
func differ(t *testing.T, got, want string) {
	at := 0
	for at < min(len(got), len(want)) && got[at] == want[at] {
		at++
	}
	from := max(0, at-80)
	t.Errorf("...%s\nthe server: ...%s", got[from:min(len(got), at+160)], want[from:min(len(want), at+160)])
}
