package status

// S3 sends the figures of an S3 endpoint; nil: there is none.
func (s Sink) S3(l *S3Line) {
	if l == nil {
		return
	}
	took := map[string]float64{}
	kind := []string{"operation", "code", "how"}
	for _, r := range l.Requests {
		s.Counts("hearth_s3_requests_total", "Requests of S3 clients that were answered, by what they asked for, the answer's status and how: cached, passed, written or refused.", r.Requests, kind, r.Operation, r.Code, r.How)
		s.Counts("hearth_s3_sent_bytes_total", "Bytes of the bodies of these answers.", r.Bytes, kind, r.Operation, r.Code, r.How)
		took[r.Operation] += r.Seconds
	}
	for operation, v := range took {
		s.Seconds("hearth_s3_seconds_total", "Time that requests of S3 clients took, by what they asked for.", v, "operation", operation)
	}
	s.Gauge("hearth_s3_under_way", "Requests of S3 clients that are being answered.", l.UnderWay)
	s.Gauge("hearth_s3_connections", "Connections that S3 clients have open.", l.Bounds.Connections)
	s.Gauge("hearth_s3_connections_limit", "Connections that they may have open.", l.Bounds.MostConnections)
	s.Count("hearth_s3_connections_closed_total", "Connections that waited for a request and were closed to make room for others.", l.Bounds.Closed)
	s.Gauge("hearth_s3_at_work", "Requests of S3 clients that have a place, by who answers.", l.Bounds.Reads, "by", "cache")
	s.Gauge("hearth_s3_at_work", "Requests of S3 clients that have a place, by who answers.", l.Bounds.Ways, "by", "bucket")
	s.Gauge("hearth_s3_at_work_limit", "Places that there are for them.", l.Bounds.MostReads, "by", "cache")
	s.Gauge("hearth_s3_at_work_limit", "Places that there are for them.", l.Bounds.MostWays, "by", "bucket")
	s.Gauge("hearth_s3_waiting", "Requests of S3 clients that wait for a place.", l.Bounds.Waiting)
	for fault, n := range l.Faults {
		s.Count("hearth_s3_faults_total", "Answers to S3 clients that were errors of the endpoint's own, refusals among them.", n, "fault", fault)
	}
	s.Gauge("hearth_s3_headers", "Objects whose headers are remembered for S3 clients.", l.Headers.Entries)
	s.Gauge("hearth_s3_headers_bytes", "Bytes of memory that these take.", l.Headers.Bytes)
	s.Count("hearth_s3_header_hits_total", "Answers to S3 clients by remembered headers.", l.Headers.Hits)
	s.Count("hearth_s3_header_asks_total", "HEADs of origins for the headers of an object.", l.Headers.Asks)
}
