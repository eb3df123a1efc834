"""The embedded engine: Llama-type GGUF models on numpy. Owner: any thread (names only).

Importing this package imports neither numpy nor gguf, so that a launcher can call
`blas.prepare_blas` first.
"""
