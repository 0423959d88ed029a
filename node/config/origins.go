package config

import (
	"github.com/hearthfs/hearth/origin"
)

// This file turns what a node is told of an origin into what opens it.

// OriginConfig is o as package origin has it, under the name that its Objects carry, asked
// by this version of the program.
func OriginConfig(o Origin, link, version string) origin.Config {
	return origin.Config{URL: o.URL, Link: link, Endpoint: o.Endpoint, Region: o.Region, PathStyle: o.PathStyle,
		Anonymous: o.Anonymous, RequesterPays: o.RequesterPays, CAFile: o.CAFile, Identity: o.Identity, UserAgent: "hearth/" + version,
		Connections: o.Connections, Bandwidth: o.Bandwidth, Timeout: o.Timeout}
}
