package s3gw

import "testing"

func TestDomainsThatNobodyCouldMean(t *testing.T) {
	// A domain that no client's Host can match is refused, as none of its buckets would ever be found.
	for domain, right := range map[string]bool{"s3.example.org": true, "localhost": true, "": false, "s3.example.org:9000": false, "*.example.org": false,
		".example.org": false, "example.org.": false, "https://example.org": false, "example.org/s3": false} {
		problems := Setup{Listen: ":0", Anonymous: []string{"b"}, Domains: []string{domain}}.Problems()
		if err := problems["s3.domains"]; (err == nil) != right {
			t.Errorf("%q: %v", domain, err)
		}
	}
}

func TestLinksThatCannotBeConfigured(t *testing.T) {
	for url, right := range map[string]bool{"s3://bucket": true, "s3://bucket/": true, "s3://bucket/part": false, "s3://bucket/part/": false, "file:///dir": false, "": false} {
		if err := Configurable(url, ":0"); (err == nil) != right {
			t.Errorf("%q: %v", url, err)
		}
		if Configurable(url, "") == nil {
			t.Errorf("%q can be configured where nobody asks", url)
		}
	}
}
