"""Where the Hugging Face cache keeps a downloaded model. Owner: the calling thread.

Under ``models--ORG--NAME``: ``refs/REVISION`` holds a commit hash, ``snapshots/HASH`` its files.
Only read; nothing is fetched.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def hub_folders(environ: Mapping[str, str]) -> list[Path]:
    """The cache folder by the environment, as huggingface_hub resolves it."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if environ.get(name):
            return [Path(environ[name]).expanduser()]
    if environ.get("HF_HOME"):
        return [Path(environ["HF_HOME"]).expanduser() / "hub"]
    cache = environ.get("XDG_CACHE_HOME") or "~/.cache"
    return [Path(cache).expanduser() / "huggingface" / "hub"]


def cached_snapshot(
    model_id: str, revision: str, environ: Mapping[str, str] | None = None
) -> tuple[Path | None, list[str]]:
    """(folder of this revision or ``None``, what was looked at, in words)."""
    parts = model_id.split("/")
    if len(parts) > 2 or not all(parts) or any(part in (".", "..") for part in parts):
        return None, [f"{model_id!r} is no hub id"]
    tried: list[str] = []
    for hub in hub_folders(os.environ if environ is None else environ):
        model = hub / ("models--" + "--".join(parts))
        if not model.is_dir():
            tried.append(f"no {model}")
            continue
        snapshots = model / "snapshots"
        commit = revision
        ref = model / "refs" / revision
        if ".." not in Path(revision).parts and ref.is_file():
            commit = ref.read_text("utf-8").strip()
        folder = snapshots / commit
        if commit and "/" not in commit and folder.is_dir():
            return folder, tried
        tried.append(f"no revision {revision!r} in {model}")
    return None, tried
