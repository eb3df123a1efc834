"""A child that downloads one file: `download.py URL PLACE SHA256`. Owner: one process.

A process of its own, so that its parent can end it even inside a name lookup that hangs. Prints
`Progress DONE of TOTAL` lines. Exit status 1 with one line on what went wrong.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import sys
import urllib.error
import urllib.request

TIMEOUT_S = 5
CHUNK_BYTES = 1 << 18


def download(url: str, place: str, sha256: str) -> str:
    """Downloads and checks; returns "" or what went wrong. `place` is whole or not there."""
    partial = f"{place}.partial"
    seen = hashlib.sha256()
    done = 0
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as reply, open(partial, "wb") as file:
            total = int(reply.headers.get("Content-Length") or 0)
            while True:
                data = reply.read(CHUNK_BYTES)
                if not data:
                    break
                file.write(data)
                seen.update(data)
                done += len(data)
                print(f"Progress {done} of {total}", flush=True)
    except urllib.error.URLError as error:
        return str(error.reason)
    except (OSError, ValueError, http.client.HTTPException) as error:
        return str(error) or type(error).__name__
    if seen.hexdigest() != sha256:
        return f"wrong checksum: {seen.hexdigest()}"
    os.replace(partial, place)
    return ""


if __name__ == "__main__":
    fault = download(*sys.argv[1:4])
    if fault:
        print(fault)
        raise SystemExit(1)
