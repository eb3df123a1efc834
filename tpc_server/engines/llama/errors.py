"""Errors of the embedded engine. Owner: any thread (names only)."""

from __future__ import annotations


class EngineError(Exception):
    """The engine cannot load or run what it was given; the text says what and why."""
