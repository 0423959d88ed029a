package config

import (
	"github.com/hearthfs/hearth/origin"
)

// This file turns the settings of an origin into the configuration that opens it.

// OriginConfig returns o as package origin needs it. link is the name that its Objects carry, and version
// is this program's.
func OriginConfig(o Origin, link, version string) origin.Config {
	return origin.Config{URL: o.URL, Link: link, Endpoint: o.Endpoint, Region: o.Region, PathStyle: o.PathStyle,
		Anonymous: o.Anonymous, RequesterPays: o.RequesterPays, CAFile: o.CAFile, Identity: o.Identity, UserAgent: "hearth/" + version,
		Connections: o.Connections, Bandwidth: o.Bandwidth, Timeout: o.Timeout, Write: origin.Write(o.Write)}
}
