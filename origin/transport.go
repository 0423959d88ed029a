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

// This file makes the connections to an S3 origin: HTTP/1.1, through the environment's proxies, as
// many as are kept alive, each with a timeout for connecting.

// newTransport returns a transport that keeps that many connections. It trusts the system's
// certificates and those of a file; "" means the system's only. held is how long a body with "Expect:
// 100-continue" is held back from an origin that sends nothing.
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
		DisableCompression:    true, // an object's bytes must arrive as they are stored
		TLSNextProto:          map[string]func(string, *tls.Conn) http.RoundTripper{},
	}, nil
}

// trusted returns the system's certificates together with those of a file. Nil means the system's.
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
