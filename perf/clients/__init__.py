"""Load clients. Owner: each runs alone in a process of its own, on a CPU of its own."""
