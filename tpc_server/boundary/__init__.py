"""headers, columns and the ring client of the scheduler boundary. Owner: any thread (names only)."""
