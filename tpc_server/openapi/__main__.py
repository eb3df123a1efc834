"""Prints docs/API.md. Owner: a developer's shell."""

from __future__ import annotations

from .markdown import page

print(page(), end="")
