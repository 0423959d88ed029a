package status

// Export sends the figures of the document that are no part's own.
func (s *Status) Export(m Sink) {
	m.Gauge("hearth_problems", "Problem lines of status; alert on more than 0.", int64(len(s.Problems)))
	m.Gauge("hearth_warnings", "Warning lines of status: what a person should know though the node is well.", int64(len(s.Warnings)))
	for verb, n := range s.Origin.Verbs {
		m.Count("hearth_origin_requests_total", "Attempts sent to origins, retries included.", n, "verb", verb)
	}
	m.Count("hearth_origin_bytes_total", "Bytes of bodies read from origins.", s.Origin.Bytes)
	m.Count("hearth_origin_errors_total", "Attempts at origins that failed; that a key or a version is not there is an answer, and so is where a bucket lies.", s.Origin.Errors)
	m.Count("hearth_origin_retries_total", "Attempts at origins that were sent again.", s.Origin.Retries)
	m.Count("hearth_origin_throttled_total", "Answers of origins that asked to slow down: 429, 503 or SlowDown.", s.Origin.Throttled)
	s.exportSeen(m)
	m.Count("hearth_uncached_reads_total", "Blocks read of objects without a strong ETag, which no tier keeps.", s.Uncached)
	for _, t := range s.Tiers {
		m.Gauge("hearth_tier_used_bytes", "Bytes held by a tier.", t.Used, "tier", t.Name)
		m.Gauge("hearth_tier_budget_bytes", "Bytes a tier may hold.", t.Budget, "tier", t.Name)
		m.Count("hearth_tier_hits_total", "Reads answered by a tier.", t.Hits, "tier", t.Name)
		m.Count("hearth_tier_hit_bytes_total", "Bytes answered by a tier.", t.HitBytes, "tier", t.Name)
		m.Count("hearth_tier_misses_total", "Reads that a tier did not hold.", t.Misses, "tier", t.Name)
		m.Count("hearth_tier_errors_total", "Failed system calls and damaged blocks of a tier, each a miss.", t.Errors, "tier", t.Name)
		for _, d := range t.Dirs {
			ill := int64(0)
			if d.Ill != "" {
				ill = 1
			}
			m.Gauge("hearth_dir_used_bytes", "Bytes allocated in a cache directory, the names included.", d.Used, "dir", d.Path)
			m.Count("hearth_dir_stalls_total", "Times that a cache directory's device did not answer.", d.Stalls, "dir", d.Path)
			m.Count("hearth_dir_declined_total", "Blocks that a cache directory was offered and did not take, and reads of which no block was fetched since its device was behind.", d.Declined, "dir", d.Path)
			m.Count("hearth_dir_mended_total", "Files of a cache directory that somebody had harmed, and that were given their rights back or made anew.", d.Mended, "dir", d.Path)
			m.Gauge("hearth_dir_unindexed", "Blocks that a cache directory holds and that are misses, as there is no memory to index them: raise cache.ram.", d.Unindexed, "dir", d.Path)
			m.Gauge("hearth_dir_hanging", "Operations left to a cache directory's device that have not come back.", d.Hanging, "dir", d.Path)
			m.Count("hearth_scrub_bytes_total", "Bytes of a cache directory that were read again and verified.", d.Scrub.Bytes, "dir", d.Path)
			m.Count("hearth_scrub_bad_total", "What the scrub found not to be what was written, and dropped, or could not read; alert on it: the disk changes bytes.", d.Scrub.Bad, "dir", d.Path)
			m.Count("hearth_scrub_failed_total", "Attempts at the scrub that ended in an error, as of a process short of descriptors; it goes on there 10 s later.", d.Scrub.Failed, "dir", d.Path)
			m.Gauge("hearth_scrub_rate_bytes_per_second", "Bytes of a cache directory that are read again and verified now.", d.Scrub.Now, "dir", d.Path)
			m.Gauge("hearth_scrub_last_pass_timestamp_seconds", "When the last whole pass of the scrub ended; 0: none has.", d.Scrub.Last.Ended, "dir", d.Path)
			m.Gauge("hearth_dir_ill", "1 while a cache directory is out of use.", ill, "dir", d.Path)
		}
	}
	m.Gauge("hearth_memory_budget_bytes", "The RAM budget in bytes.", s.Memory.Budget)
	m.Gauge("hearth_memory_used_bytes", "Bytes that count against the RAM budget.", s.Memory.Used)
	m.Gauge("hearth_memory_views", "Views alive; a number that only grows is a bug.", s.Memory.Views)
	m.Names(s.Names.Figures)
	stale := int64(0)
	if s.Names.Stale != "" {
		stale = 1
	}
	m.Gauge("hearth_names_stale", "1 while an origin cannot be asked and last known names are shown.", stale)
}

// exportSeen sends what is counted beside the node's parts.
func (s *Status) exportSeen(m Sink) {
	m.Times("hearth_origin_first_byte_seconds", "How long answers of origins let wait for their first byte; those that ask to slow down count, too.", s.Origin.FirstByte)
	for cause, v := range s.Waits {
		m.Seconds("hearth_wait_seconds_total", "Time that readers waited, by cause; of requests that wait at once for one thread it counts once.", v, "cause", cause)
	}
	for purpose, x := range s.Egress.Asked {
		m.Count("hearth_egress_requests_total", "What origins were asked for: fetches of blocks, HEAD and LIST.", x.Requests, "purpose", purpose)
		m.Count("hearth_egress_bytes_total", "Bytes that came of it.", x.Bytes, "purpose", purpose)
	}
	for by, x := range s.Egress.Avoided {
		m.Count("hearth_egress_avoided_requests_total", "Reads for which no origin was asked.", x.Requests, "by", by)
		m.Count("hearth_egress_avoided_bytes_total", "Bytes of these reads.", x.Bytes, "by", by)
	}
	m.Gauge("hearth_listings_running", "Directories that are being listed at their origin.", int64(len(s.Names.Listings)))
}
