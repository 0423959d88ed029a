package node

import (
	"path"
	"strings"
)

// This file distinguishes paths of the tree from keys at an origin, and splits both.

// cleanPath returns a tree path with one slash in front, none at the end, and none doubled.
func cleanPath(p string) string { return path.Clean("/" + p) }

// belowPath returns the part of p below dir, and whether p is dir or lies below it.
func belowPath(p, dir string) (string, bool) {
	if p == dir || dir == "/" {
		return strings.TrimPrefix(p, dir), true
	}
	return strings.CutPrefix(p, dir+"/")
}

// isURL reports whether s is a key at an origin. A path of the tree begins with "/".
func isURL(s string) bool { return !strings.HasPrefix(s, "/") && strings.Contains(s, "://") }

// splitURL splits a URL into the bucket and the key in it, byte for byte. The path of a file:// URL is cleaned,
// since it then still names the same file.
func splitURL(url string) (bucket, key string) {
	scheme, rest, _ := strings.Cut(url, "://")
	if scheme != "file" {
		bucket, key, _ = strings.Cut(rest, "/")
		return scheme + "://" + bucket, key
	}
	key = strings.TrimPrefix(path.Clean("/"+rest), "/")
	if key != "" && strings.HasSuffix(rest, "/") {
		key += "/"
	}
	return "file://", key
}

// pathFor returns the path of a link that is made at run time: its URL with ":" for each "/".
func pathFor(url string) string {
	scheme, rest, _ := strings.Cut(strings.TrimRight(url, "/"), "://")
	return "/" + scheme + ":" + strings.ReplaceAll(strings.Trim(rest, "/"), "/", ":")
}
