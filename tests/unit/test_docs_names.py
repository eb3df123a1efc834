"""What the pages name is there: files, flags, modules, names, variables, links. Owner: pytest."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.joinpath("docs").rglob("*.md"), ROOT / "perf" / "README.md"]
)
FOLDERS = ("tpc_server", "tests", "perf", "requirements", "docs")
SUFFIXES = {".py", ".txt", ".json", ".jsonl", ".toml"}
# Python's own; and variables, constants and opcodes of others, which are written in capitals.
FOREIGN_NAMES = {"lru_cache"}
OWN_CAPITALS = ("TPC_", "SGLANG_")
PLACEHOLDERS = {"requirements/NAME.txt"}
_FILE = re.compile(r"[\w.*-][\w./*-]*\.(?:py|md|txt|json|toml)|[\w.-][\w./-]*/")


def files() -> Iterator[Path]:
    """Of the project, as paths from its root."""
    for path in ROOT.iterdir():
        if path.is_file():
            yield path.relative_to(ROOT)
    for folder in FOLDERS:
        for path in ROOT.joinpath(folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path.relative_to(ROOT)


@functools.cache
def texts() -> dict[str, str]:
    """The sources: what a page may name must be in one of them, and this one does not count."""
    found = {}
    for path in files():
        source = path.suffix in SUFFIXES or path.name == "tpc"
        if source and path.name != Path(__file__).name:
            found[str(path)] = ROOT.joinpath(path).read_text(encoding="utf-8", errors="replace")
    return found


@functools.cache
def words() -> set[str]:
    named = {part for path in texts() for part in re.findall(r"\w+", path)}
    return named.union(*[re.findall(r"\w+", text) for text in texts().values()])


@functools.cache
def flags() -> set[str]:
    return set().union(*[re.findall(r"--[a-z][a-z0-9-]+", text) for text in texts().values()])


def quoted(page: Path) -> list[str]:
    """What stands between backticks, outside of examples."""
    text = page.read_text(encoding="utf-8")
    return re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", text, flags=re.S))


def missing(said: str) -> Iterator[str]:
    """What a quotation names and nobody has."""
    if _FILE.fullmatch(said) and said not in PLACEHOLDERS:
        pattern = f"/{said}*" if said.endswith("/") else f"/{said}"
        known = [Path("/") / path for path in files()]
        if said.endswith("/"):
            if not any(pattern[:-1] in str(path) for path in known):
                yield f"folder {said}"
        elif not any(path.match(pattern) or path.match(said) for path in known) and (
            "/" in said or not any(said in text for text in texts().values())  # of a model's folder
        ):
            yield f"file {said}"
        return
    for flag in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", said):
        setting = flag[2:].replace("-", "_")  # SGLang's are known by their names as settings
        if flag not in flags() and not flag.endswith("-") and setting not in words():
            yield f"flag {flag}"
    for module in re.findall(r"(?<![\w.])(?:tpc_server|tests|perf)(?:\.\w+)+", said):
        parts = module.split(".")
        here = ROOT
        while parts and (here / parts[0]).is_dir():
            here /= parts.pop(0)
        if parts and not (here / f"{parts[0]}.py").is_file():
            inside = here / "__init__.py"
            if not re.search(rf"\b{parts[0]}\b", inside.read_text(encoding="utf-8")):
                yield f"module {module}"
    for name in re.findall(r"[A-Za-z_]\w*", said):
        if name.isupper() and not name.startswith(OWN_CAPITALS):
            continue
        if "_" in name and not {name, name.removesuffix("_total")} & (words() | FOREIGN_NAMES):
            yield f"name {name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_names_is_there(page):
    assert not sorted({name for said in quoted(page) for name in missing(said)})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))
    gone = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not gone


def test_what_is_gone_would_be_noticed():
    for said in (
        "stages/gone.py", "gone/", "tests/unit/test_gone_*.py", "--gone-flag 3", "TPC_GONE_NAME",
        "tpc_server.gone.thing", "_gone_function(x)", "a.mark_gone_closed",
    ):  # fmt: skip
        assert list(missing(said)), said
    for said in ("stages/rows.py", "parsers/", "--model-path PATH", "tpc_server.boundary.codec"):
        assert not list(missing(said)), said


SCRIPTS = sorted(ROOT.joinpath("perf").glob("*.py"))


def test_the_table_of_benchmarks_has_each_once():
    text = ROOT.joinpath("perf", "README.md").read_text(encoding="utf-8")
    table = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| `")]
    named = [name for cell in table for name in re.findall(r"`([\w/.]+)`", cell)]
    assert sorted(named) == sorted(
        ["clients/", *[path.name for path in SCRIPTS if path.name != "__init__.py"]]
    )


def test_every_module_says_who_owns_it():
    """In its first lines; a package may say it of its parts."""
    silent = []
    for path in sorted(ROOT.joinpath("tpc_server").rglob("*.py")):
        said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        lines = said if path.name == "__init__.py" else "\n\n".join(said.split("\n\n")[:2])
        if not re.search(r"\b(Owner:|[Ss]tateless)", lines):
            silent.append(str(path.relative_to(ROOT)))
    assert not silent
