package origin

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"
)

// This file makes the connections to an S3 origin: HTTP/1.1, by the environment's proxies, as
// many as are kept, each given up when nobody answers at its beginning.

// newTransport is a transport of so many connections, which trusts the system's certificates and those of a
// file; "": the system's alone. A body that is to be asked for is held back so long from an origin that
// says nothing.
func newTransport(connections int, file string, held time.Duration) (*http.Transport, error) {
	roots, err := trusted(file)
	if err != nil {
		return nil, err
	}
	dialer := &net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}
	return &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           dialer.DialContext,
		TLSClientConfig:       &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12, ClientSessionCache: tls.NewLRUClientSessionCache(64)},
		TLSHandshakeTimeout:   10 * time.Second,
		MaxIdleConns:          connections,
		MaxIdleConnsPerHost:   connections,
		IdleConnTimeout:       time.Minute,
		ExpectContinueTimeout: held,
		DisableCompression:    true, // an object's bytes are what they are
		TLSNextProto:          map[string]func(string, *tls.Conn) http.RoundTripper{},
	}, nil
}

// trusted is the system's certificates and those of a file; nil: the system's.
func trusted(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the CA file: %w", err)
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		roots = x509.NewCertPool()
	}
	if !roots.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("CA file %s holds no PEM certificate", file)
	}
	return roots, nil
}
