package machine

import (
	"fmt"
	"os"
	"path/filepath"
)

// CacheDir is where the cache lies without configuration.
func CacheDir() (string, error) {
	if os.Geteuid() == 0 {
		return "/var/cache/hearth", nil
	}
	dir, err := os.UserCacheDir() // $XDG_CACHE_HOME, else $HOME/.cache
	if err != nil {
		return "", fmt.Errorf("find a cache directory: %w (set XDG_CACHE_HOME or cache.disks)", err)
	}
	return filepath.Join(dir, "hearth"), nil
}
