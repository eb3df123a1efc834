"""headers, columns and ring client of the scheduler boundary. Owner: any thread (names only)."""
