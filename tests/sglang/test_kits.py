"""SGLang's own test kits at our port: what passes with its Python frontend passes. Owner: pytest.

Which run, on which server, and which do not: `kits.py`. What SGLang's frontend makes of them is
recorded (`record.py`).
"""

from __future__ import annotations

import json

import pytest

from tests.sglang import kits, programs
from tests.sglang.allowed import KITS_NOT_YET
from tests.sglang.answering import answering
from tests.sglang.record import DATA

pytestmark = [pytest.mark.sglang, pytest.mark.network, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def recorded():
    return json.loads((DATA / "python.json").read_text("utf-8"))


@pytest.fixture
def passed(recorded, request):
    """`passed(server)`: what passes there with SGLang's frontend, the long ones with --full."""
    full = request.config.getoption("--full")

    def on(server):
        return [
            test for test, how in recorded["kits"].items()
            if how == "passed" and kits.server_of(test) == server
            and (full or test not in kits.LONG)
        ]  # fmt: skip

    return on


def wrong(results, tests):
    return {test: results.get(test) for test in tests if results.get(test) != "passed"}


def test_every_test_is_run_or_listed(prepared, recorded):
    """Against the folder of the package: what a new version brings is missed here."""
    folder = kits.tests_in(programs.kits_folder(prepared))
    assert {module for module, tests in folder.items() if not tests} == set(kits.HELPERS)
    tests = {test: module for module, named in folder.items() for test in named}
    assert not set(recorded["kits"]) & set(kits.NOT_RUN)
    assert {*recorded["kits"], *kits.NOT_RUN} == set(tests)
    assert recorded["kit_modules"] == tests


def test_on_the_plain_server(sglang, passed, tmp_path):
    tests = passed(kits.PLAIN)
    found = wrong(programs.kits(sglang, tmp_path, *tests), tests)
    assert set(found) == set(KITS_NOT_YET), found


@pytest.mark.parametrize("server", [name for name in kits.SERVERS if name != kits.PLAIN])
def test_on_a_server_of_their_own(prepared, serve, passed, tmp_path, server):
    wanted = kits.SERVERS[server]
    tests = passed(server)
    assert tests
    model = answering(prepared) if wanted.model == "answering" else None
    with serve("tpc", *wanted.flags, model=model, **dict(wanted.env)).wait() as running:
        assert wrong(programs.kits(running, tmp_path, *tests), tests) == {}


def test_what_is_cached_in_a_conversation(sglang, recorded):
    assert programs.cache_hits(sglang) == recorded["cache_hits"]
