package admin

// right is the least rank that may ask for a route.
type right struct {
	Least Rank
	// What says what only owners may do, and Cure what others do instead. Both are empty if members may.
	What, Cure string
}

// table has every route of the admin API, by its ServeMux pattern. docs/service.md says the same to people.
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
		"GET /v1/volumes":     member,
		"GET /v1/goroutines":  owner("see the node's goroutines", asRoot),

		// Reads of what the node's links lead to. None of them names another origin.
		"GET /v1/ls":      member,
		"GET /v1/cat":     member,
		"GET /v1/stat":    member,
		"GET /v1/du":      member,
		"GET /v1/explain": member,
		// This asks the origin again for names of these links.
		"POST /v1/refresh": member,

		// A mount names an origin, files of this machine that are used to ask it, and a directory, of which a
		// descriptor may come along.
		"POST /v1/mounts":     owner("mount", byOwn),
		"DELETE /v1/mounts":   owner("take a mount away", asRoot),
		"GET /v1/mounts/wait": owner("wait for a mount's end", asRoot),

		// It runs a program as the node.
		"POST /v1/upgrade": owner("upgrade the node", asRoot),

		// Warm-ups. Everybody sees all of them. The job decides who may end or retry it.
		"POST /v1/jobs":             member,
		"GET /v1/jobs":              member,
		"GET /v1/jobs/{id}":         member,
		"GET /v1/jobs/{id}/watch":   member,
		"GET /v1/jobs/{id}/found":   member,
		"POST /v1/jobs/{id}/cancel": member,
		"POST /v1/jobs/{id}/retry":  member,

		// Pins. Everybody sees all of them. The pin decides who may end it.
		"GET /v1/pins":    member,
		"DELETE /v1/pins": member,

		// Files that were written. Everybody sees all of them. The file's owner decides who may publish and drop it.
		"GET /v1/drafts":          member,
		"POST /v1/drafts/publish": member,
		"DELETE /v1/drafts":       member,

		// What all users share.
		// A volume names a device of this machine or a target, and a file with a secret.
		"POST /v1/volumes":   owner("attach a volume", asRoot),
		"DELETE /v1/volumes": owner("detach a volume", asRoot),
		"POST /v1/evict":     owner("evict", asRoot+"; what nobody reads goes by itself"),
		"POST /v1/fsck":      owner("check a cache directory", asRoot),
	}
}
