package direct

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// WriteDurably writes a small file so that after a crash it is whole or absent.
func WriteDurably(name string, data []byte) error {
	tmp := name + ".tmp"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(tmp, name)
	}
	if err != nil {
		os.Remove(tmp)
		return err
	}
	dir, err := os.Open(filepath.Dir(name))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// MakeDir makes a directory of ours, in the place of whatever else has its name.
func MakeDir(name string) error {
	if err := ClearWay(name, true); err != nil {
		return err
	}
	if err := os.MkdirAll(name, 0o700); err != nil {
		return fmt.Errorf("make cache directory: %w", err)
	}
	return nil
}

// ClearWay removes what stands under one of our names and is not of its kind.
func ClearWay(name string, dir bool) error {
	fi, err := os.Lstat(name)
	if err != nil || fi.IsDir() == dir && (dir || fi.Mode().IsRegular()) {
		return nil
	}
	if err := os.RemoveAll(name); err != nil {
		return fmt.Errorf("clear cache directory: %w", err)
	}
	return nil
}
