"""Schedulers of other people that are served by this frontend. Owner: each, its own program."""
