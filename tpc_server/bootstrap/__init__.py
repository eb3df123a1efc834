"""From a bare python3 to a running server: interpreter, environment, test data. Owner: one process.

Standard library only, Python 3.9 or newer, and nothing of the rest of tpc_server is imported: this
runs before any of it can. As a command: `python3 tpc_server/bootstrap ARGS` (what ./tpc does),
`python3 -m tpc_server.bootstrap ARGS`, or `tpc-server setup` and `tpc-server doctor`.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command (`help` lists them) and returns its exit status."""
    from .cli import run_command

    return run_command(argv)
