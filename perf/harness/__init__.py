"""What the benchmark scripts share. Owner: whichever single process imports it; nothing is shared.

Standard library only, except where a module says otherwise: the same files are run by the
free-threaded interpreter, by a GIL 3.12 and by the peers.
"""
