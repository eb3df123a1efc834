"""request types, declared once, with their decoders. Owner: any thread (names only)."""
