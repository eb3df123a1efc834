"""schedulers behind the boundary. Owner: any thread (names only)."""
