package admin

// right is the least rank that may ask for a route.
type right struct {
	Least Rank
	// What only owners may, and what others do instead; "": members may.
	What, Cure string
}

// table is every route of the admin API, as ServeMux has its patterns. docs/service.md
// says the same to people.
func table() map[string]right {
	member := right{Least: Member}
	owner := func(what, cure string) right { return right{Owner, what, cure} }
	const (
		asRoot = "become root (sudo)"
		byOwn  = asRoot + ", have the configuration or fstab name the mount, or mount with a node of your own (hearth mount without --node and HEARTH_NODE)"
	)
	return map[string]right{
		// How the node is.
		"GET /metrics":        member,
		"GET /healthz":        member,
		"GET /v1/status":      member,
		"GET /v1/ring":        member,
		"GET /v1/ring/owners": member,
		"GET /v1/goroutines":  owner("see the node's goroutines", asRoot),

		// Reads, of what links of the node lead to: none of them names another origin.
		"GET /v1/ls":      member,
		"GET /v1/cat":     member,
		"GET /v1/stat":    member,
		"GET /v1/du":      member,
		"GET /v1/explain": member,
		// Names of these links are asked for again.
		"POST /v1/refresh": member,

		// A mount names an origin, files of this machine to ask it with, and a directory, of
		// which a descriptor may come along.
		"POST /v1/mounts":     owner("mount", byOwn),
		"DELETE /v1/mounts":   owner("take a mount away", asRoot),
		"GET /v1/mounts/wait": owner("wait for a mount's end", asRoot),

		// Warm-ups: those of others are seen. Who may end or retry one, the job knows.
		"POST /v1/jobs":             member,
		"GET /v1/jobs":              member,
		"GET /v1/jobs/{id}":         member,
		"GET /v1/jobs/{id}/watch":   member,
		"GET /v1/jobs/{id}/found":   member,
		"POST /v1/jobs/{id}/cancel": member,
		"POST /v1/jobs/{id}/retry":  member,

		// Pins: those of others are seen. Who may end one, the pin knows.
		"GET /v1/pins":    member,
		"DELETE /v1/pins": member,

		// What all share.
		"POST /v1/evict": owner("evict", asRoot+"; what nobody reads goes by itself"),
		"POST /v1/fsck":  owner("check a cache directory", asRoot),
	}
}
