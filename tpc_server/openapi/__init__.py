"""The API's description, made from the declared routes and request types. Owner: stateless.

`python -m tpc_server.openapi` prints docs/API.md. Nothing here is imported before someone asks.
"""

from __future__ import annotations

from pathlib import Path


def docs_html() -> bytes:
    """The page of /docs."""
    return (Path(__file__).parent / "docs.html").read_bytes()
