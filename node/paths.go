package node

import (
	"path"
	"strings"
)

// This file tells paths of the tree from keys at an origin, and takes both apart.

// cleanPath makes a tree path: one slash in front, none behind, none doubled.
func cleanPath(p string) string { return path.Clean("/" + p) }

// belowPath gives what of p lies below dir.
func belowPath(p, dir string) (string, bool) {
	if p == dir || dir == "/" {
		return strings.TrimPrefix(p, dir), true
	}
	return strings.CutPrefix(p, dir+"/")
}

// isURL tells a key at an origin from a path of the tree, which begins with "/".
func isURL(s string) bool { return !strings.HasPrefix(s, "/") && strings.Contains(s, "://") }

// splitURL takes a URL apart into the bucket and the key in it, byte for byte. A
// file's path is cleaned, as it names the same file then.
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

// pathFor is where a link that is made at run time stands: its URL says it best.
func pathFor(url string) string {
	scheme, rest, _ := strings.Cut(strings.TrimRight(url, "/"), "://")
	return "/" + scheme + ":" + strings.ReplaceAll(strings.Trim(rest, "/"), "/", ":")
}
