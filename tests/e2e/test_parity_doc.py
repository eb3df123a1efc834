"""The tables of docs/COMPATIBILITY.md are the ones the parity tests use. Owner: pytest."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.e2e.parity_choices import CHOICES, MESSAGES_WITHOUT_PAIR, RECORDED, WITHOUT_PAIR
from tests.e2e.parity_fields import errors, fields
from tests.e2e.parity_routes import NOT_SERVED, SERVED
from tests.http_client import Client
from tpc_server.routes.table import ROUTES

ROOT = Path(__file__).parents[2]
DOC = ROOT / "docs" / "COMPATIBILITY.md"
PART = re.compile(
    r"(<!-- (routes|not served|fields|errors|choices|answers|messages) -->\n).*?(<!-- end -->)",
    re.S,
)


def row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    return row(*head) + "|" + "---|" * len(head) + "\n" + "".join(row(*cells) for cells in rows)


def printed(part: str) -> str:
    if part == "routes":
        ours = {route.path: ", ".join(route.methods) for route in ROUTES}
        return table(
            ("Path", "Rust", "Python", "Ours", "Of ours"),
            [
                (f"`{path}`", rust, python, ours.get(path, "to come"), note)
                for path, (rust, python, note) in SERVED.items()
            ],
        )
    if part == "not served":
        return table(
            ("Why", "Paths"),
            [(why, ", ".join([f"`{p}`" for p in paths])) for why, paths in NOT_SERVED.items()],
        )
    if part == "fields":
        grouped: dict[tuple[str, str, str, str], list[str]] = {}
        for route, name, *three in fields():
            grouped.setdefault((route, *three), []).append(f"`{name}`")  # type: ignore[arg-type]
        return table(
            ("Route", "Fields", "Rust", "Python", "Ours"),
            [(r, ", ".join(names), rust, py, our) for (r, rust, py, our), names in grouped.items()],
        )
    if part == "errors":
        return table(("What", "Rust", "Python", "Ours"), list(errors()))
    if part == "choices":
        return table(
            ("What", "Rust", "Python", "Ours", "Why", "Shown by"),
            [
                (c.what, c.rust, c.python, c.ours, c.why, c.proof.rpartition("/")[2])
                for c in CHOICES
            ],
        )
    rows = WITHOUT_PAIR if part == "answers" else MESSAGES_WITHOUT_PAIR
    return table(("Recorded", "Why"), [(f"`{name}`", why) for name, why in rows.items()])


def refreshed(text: str) -> str:
    """The page with its tables as the code gives them now."""
    return PART.sub(lambda m: m.group(1) + printed(m.group(2)) + m.group(3), text)


def test_tables_are_fresh():
    text = DOC.read_text(encoding="utf-8")
    assert len(PART.findall(text)) == 7
    assert text == refreshed(text), "run: python -m tests.e2e.test_parity_doc"


def test_every_route_is_in_the_table():
    """And has one declaration."""
    paths = [route.path for route in ROUTES]
    assert set(paths) <= set(SERVED), "tests/e2e/parity_routes.py names every route"
    assert len(set(paths)) == len(paths)


def told_by(answer):
    body = answer.json()
    return body.get("error", body)["message"]


def test_what_is_not_served_is_404(start):
    run = start()
    with Client(run.address) as client:
        for path in [path for paths in NOT_SERVED.values() for path in paths]:
            for method in ("GET", "POST", "PUT"):
                answer = client.call(method, path, {})
                assert answer.status == 404, path
                assert "not served here" in told_by(answer), path
        for path, told in (
            ("/chat/completions", "the route is /v1/chat/completions"),
            ("/v1/v1/models", "the route is /v1/models"),
            ("/generate//", "the route is /generate"),
            ("/nope", "Not Found"), ("/%ff", "Not Found"), ("/v1/v1/x", "Not Found"),
        ):  # fmt: skip
            answer = client.call("POST", path, {})
            assert answer.status == 404
            assert told_by(answer).endswith(told), path


def test_every_choice_has_a_proof():
    assert len({c.key for c in CHOICES}) == len(CHOICES)
    for choice in CHOICES:
        assert (choice.proof == RECORDED) == bool(choice.allowed), choice.key
        if choice.proof == RECORDED:
            continue
        path, _, name = choice.proof.partition("::")
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        assert name in {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}, choice.proof


if __name__ == "__main__":
    DOC.write_text(refreshed(DOC.read_text(encoding="utf-8")), encoding="utf-8")
