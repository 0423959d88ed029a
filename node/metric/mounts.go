package metric

// Mounts sends what mounts counted by directory and kind.
func (s Sink) Mounts(all map[string]map[string]int64) {
	for dir, ops := range all {
		for op, n := range ops {
			if op != "read_bytes" {
				s.Counts("hearth_mount_ops_total", "What the kernel asked of a mount, and what came of it.", n, []string{"dir", "op"}, dir, op)
			}
		}
		s.Count("hearth_mount_read_bytes_total", "Bytes that the kernel's reads of a mount were answered with.", ops["read_bytes"], "dir", dir)
	}
}
