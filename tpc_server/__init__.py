"""tpc_server: a thread-per-core front half of an LLM serving stack. Owner: any thread (names only)."""

__version__ = "0.1.0"
