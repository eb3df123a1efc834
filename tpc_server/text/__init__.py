"""Tokenizers, piece tables and incremental detokenization. Owner: any thread (names only)."""
