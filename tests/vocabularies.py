"""Real vocabularies with reference tokenizations, fetched once. Owner: each test.

They are in the source package of llama-cpp-python on PyPI: GGUF files without tensors, most with an
``.inp`` file (texts) and an ``.out`` file (their ids, made without special tokens).
"""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

from tpc_server.bootstrap.cache import build_once, sub
from tpc_server.bootstrap.fetch import fetch_pypi

PACKAGE = "llama-cpp-python"
VERSION = "0.3.36"
_SEPARATOR = "\n__ggml_vocab_test__\n"
_PREFIX = "ggml-vocab-"


def folder() -> Path:
    """The folder with ``NAME.gguf``, ``NAME.gguf.inp`` and ``NAME.gguf.out``."""
    return build_once(sub("data"), f"vocabularies-{VERSION}", "unpacking vocabularies", _unpack)


def _unpack(target: Path) -> None:
    with tarfile.open(fetch_pypi(PACKAGE, VERSION, "sdist")) as archive:
        for member in archive:
            name = Path(member.name).name
            if member.isfile() and "/models/" in member.name and name.startswith(_PREFIX):
                source = archive.extractfile(member)
                assert source is not None
                with (target / name.removeprefix(_PREFIX)).open("wb") as file:
                    shutil.copyfileobj(source, file)


def references(path: Path) -> list[tuple[str, list[int]]]:
    """(text, ids) of the files beside ``path``; empty where it has none."""
    texts_file, ids_file = Path(f"{path}.inp"), Path(f"{path}.out")
    if not texts_file.exists():
        return []
    texts = texts_file.read_bytes().decode().split(_SEPARATOR)
    lines = ids_file.read_text().split("\n")
    ids = [[int(word) for word in line.split()] for line in lines]
    # The list of ids ends in a line break, and so does one file of texts but for its last text.
    del ids[len(texts) :]
    assert len(ids) == len(texts), path
    return list(zip(texts, ids, strict=True))
