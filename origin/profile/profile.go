// Package profile reads the profiles of the AWS tools' shared files.
package profile

import (
	"bufio"
	"os"
	"path/filepath"
	"strings"
)

// Settings reads the settings of the profile in force from the shared config, which
// minio-go reads for credentials only; none where there is no such profile.
func Settings() map[string]string {
	settings, _ := in("AWS_CONFIG_FILE", "config")
	return settings
}

// Name is the profile in force.
func Name() string {
	if name := os.Getenv("AWS_PROFILE"); name != "" {
		return name
	}
	return "default"
}

// Missing is the profile that AWS_PROFILE names and no shared file has; "":
// there is one, or none is named.
func Missing() string {
	_, inConfig := in("AWS_CONFIG_FILE", "config")
	_, inCredentials := in("AWS_SHARED_CREDENTIALS_FILE", "credentials")
	if inConfig || inCredentials {
		return ""
	}
	return os.Getenv("AWS_PROFILE")
}

// in reads the profile's settings from the shared file that a variable
// names, or that of its name in ~/.aws; false: the file has no such profile.
func in(variable, file string) (settings map[string]string, found bool) {
	settings = map[string]string{}
	path := os.Getenv(variable)
	if path == "" {
		home, _ := os.UserHomeDir() // without one there is no file
		path = filepath.Join(home, ".aws", file)
	}
	f, err := os.Open(path)
	if err != nil {
		return settings, false
	}
	defer func() { _ = f.Close() }() // it was only read
	inside := false
	for lines := bufio.NewScanner(f); lines.Scan(); {
		line := strings.TrimSpace(lines.Text())
		if section, ok := strings.CutPrefix(line, "["); ok {
			section = strings.TrimSpace(strings.TrimSuffix(section, "]"))
			section = strings.TrimSpace(strings.TrimPrefix(section, "profile "))
			inside = section == Name()
			found = found || inside
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		if inside && ok && !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, ";") {
			settings[strings.TrimSpace(key)] = strings.TrimSpace(value)
		}
	}
	return settings, found
}
