"""The version, in one place. Owner: any thread (a constant)."""

__version__ = "0.1.0"
