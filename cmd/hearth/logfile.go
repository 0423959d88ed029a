package main

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
)

// file is a log's file, which can be opened again after a rotation.
type file struct {
	path string // absolute: a daemon leaves its directory

	mu sync.Mutex // guards f; held across writes, which the handler makes one by one anyway
	f  *os.File
}

func openFile(path string) (*file, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("open the log: %w", err)
	}
	l := &file{path: path}
	return l, l.reopen()
}

// Write is part of io.Writer.
func (l *file) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.f.Write(p)
}

// reopen opens the path again, and makes the file if there is none. If that fails, the log goes on
// in the old file.
func (l *file) reopen() error {
	f, err := os.OpenFile(l.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640)
	if err != nil {
		return fmt.Errorf("open the log: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f != nil {
		_ = l.f.Close() // each line was written
	}
	l.f = f
	return nil
}

func (l *file) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = l.f.Close() // each line was written
}
