package status

import "time"

// Names sends the figures of the namespace, by the names that these have in status.
func (s Sink) Names(f map[string]int64) {
	s.Gauge("hearth_names_disk_bytes", "Bytes that the names take on disk.", f["disk_bytes"])
	s.Gauge("hearth_names_memory_bytes", "Bytes that the names take in memory, where no disk has them.", f["memory_bytes"])
	for kind, name := range map[string]string{"lookup": "lookups", "node": "nodes", "listed": "names_read"} {
		s.Count("hearth_names_answers_total", "Answers about names to who asked the node.", f[name], "kind", kind)
	}
	for kind, name := range map[string]string{"head": "heads", "probe": "probes", "listing": "listings"} {
		s.Count("hearth_names_questions_total", "Questions to origins about names.", f[name], "kind", kind)
	}
	s.Count("hearth_names_question_errors_total", "Questions to origins about names that failed.", f["origin_errors"])
	s.Count("hearth_names_listed_total", "Names that listings of origins brought.", f["names_listed"])
	s.Took("hearth_names_slowest_listing_seconds", "What the slowest listing took; names that listings brought are believed for at most 20 times that, if it is more than the bound.",
		time.Duration(f["slowest_listing_ms"])*time.Millisecond)
	s.Count("hearth_names_stale_answers_total", "Answers from before an origin could not be asked.", f["stale_answers"])
	s.Count("hearth_names_forgets_total", "Versions that readers found gone.", f["forgets"])
	s.Gauge("hearth_names_refused", "Keys that cannot be shown, in the present listings.", f["refused"])
	s.Count("hearth_names_rebuilds_total", "Databases of names that were begun anew.", f["rebuilds"])
	s.Count("hearth_names_moves_total", "Moves of the names to another cache directory, because a disk failed.", f["moves"])
}
