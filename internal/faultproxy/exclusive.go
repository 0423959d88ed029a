package faultproxy

import (
	"net/http"
	"net/url"
	"strings"
	"sync"
)

// keyLocks has a lock for each key with a request in flight. The locks are held across I/O, which
// is their purpose. A request never holds two.
type keyLocks struct {
	mu   sync.Mutex // guards held and users; nobody waits for a key under it
	held map[string]*keyLock
}

type keyLock struct {
	sync.RWMutex
	users int // requests that hold it or wait for it
}

// claim waits for the lock of a request's key. release may be called more than once. A request that
// only reads may call it once the head of its answer has come.
func (k *keyLocks) claim(method, target string) (release func(), reads bool) {
	key, use := useOf(method, target)
	if use == usesNothing {
		return func() {}, false
	}
	k.mu.Lock()
	l := k.held[key]
	if l == nil {
		l = &keyLock{}
		k.held[key] = l
	}
	l.users++
	k.mu.Unlock()
	unlock := l.Unlock
	if use == usesObject {
		l.RLock()
		unlock = l.RUnlock
	} else {
		l.Lock()
	}
	return sync.OnceFunc(func() {
		unlock()
		k.mu.Lock()
		defer k.mu.Unlock()
		if l.users--; l.users == 0 {
			delete(k.held, key)
		}
	}), use == usesObject
}

// use is what a request does with an object.
type use int

const (
	usesNothing   use = iota // a bucket's request, or one for the parts of an upload
	usesObject               // GET, HEAD
	changesObject            // PUT, DELETE, the POST that completes an upload
)

// useOf names the object of a request, "bucket/key" however the client escaped it.
func useOf(method, target string) (key string, u use) {
	path, query, _ := strings.Cut(target, "?")
	path = strings.TrimPrefix(path, "/")
	if plain, err := url.PathUnescape(path); err == nil { // otherwise it stays as it was sent
		path = plain
	}
	if _, name, _ := strings.Cut(path, "/"); name == "" {
		return "", usesNothing
	}
	upload := strings.Contains(query, "uploadId=")
	switch method {
	case http.MethodGet, http.MethodHead:
		return path, usesObject
	case http.MethodPut, http.MethodDelete:
		if !upload {
			return path, changesObject
		}
	case http.MethodPost:
		if upload {
			return path, changesObject
		}
	}
	return "", usesNothing
}
