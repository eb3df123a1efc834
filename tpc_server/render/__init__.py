"""response bytes (standard library only). Owner: any thread (names only)."""
