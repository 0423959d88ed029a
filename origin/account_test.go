package origin

import "testing"

func TestAccountsThatNamesOfBucketsMeanTheSameIn(t *testing.T) {
	// Endpoints of one of Amazon's partitions are one account, however they are asked; others are
	// each its own, with or without the port that its scheme has, and apart if nothing is signed.
	for _, x := range []struct {
		c    Config
		want string
	}{
		{Config{}, "aws"},
		{Config{Region: "eu-central-1"}, "aws"},
		{Config{Endpoint: "https://s3.eu-west-1.amazonaws.com", PathStyle: "on", Anonymous: true}, "aws"},
		{Config{Endpoint: "https://s3.eu-west-1.amazonaws.com:443"}, "aws"},
		{Config{Region: "cn-north-1"}, "aws-cn"},
		{Config{Region: "us-gov-west-1"}, "aws-us-gov"},
		{Config{Endpoint: "http://Store.example:80"}, "http://store.example"},
		{Config{Endpoint: "http://store.example", PathStyle: "off"}, "http://store.example"},
		{Config{Endpoint: "https://store.example"}, "https://store.example"},
		{Config{Endpoint: "http://store.example:9000"}, "http://store.example:9000"},
		{Config{Endpoint: "http://[::1]:80"}, "http://[::1]"},
		{Config{Endpoint: "http://store.example", Anonymous: true}, "http://store.example unsigned"},
	} {
		x.c.URL = "s3://bucket/prefix"
		s := open(t, x.c).(*S3)
		if got := s.Account(); got != x.want {
			t.Errorf("%+v: %q, want %q", x.c, got, x.want)
		}
	}
}
