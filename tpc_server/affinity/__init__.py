"""which CPUs there are and which core gets which. Owner: any thread (names only)."""
