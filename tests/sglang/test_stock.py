"""SGLang's own frontends, with our package beside them: as without us. Owner: pytest."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.e2e.parity_replay import differences
from tests.http_client import Client, call
from tests.sglang.generated import generated
from tests.sglang.record import DATA, answers, ask
from tests.sglang.serving import environ
from tests.sglang.test_answers import same

pytestmark = [pytest.mark.sglang, pytest.mark.network, pytest.mark.timeout(900)]
PROGRAM = Path(__file__).with_name("left_alone.py")
RUST = {"SGLANG_RUST_SERVER": "1"}
# What leaves SGLang as it is; without the plugin there is nobody to read it.
VALUES = ("", "0", "python", "rust", " Python ")
WITHOUT = "without us"
FEW = 16  # of the generated requests, where not all are asked


@pytest.fixture(scope="module")
def found(prepared):
    cases = {value: {"SGLANG_FRONTEND": value} for value in VALUES}
    cases |= {"unset": {}, "tpc": {"SGLANG_FRONTEND": "tpc"}}
    cases |= {WITHOUT: {"SGLANG_FRONTEND": "tpc", "SGLANG_PLUGINS": "none of them"}}
    done = subprocess.run(
        [str(prepared.python), str(PROGRAM)], input=json.dumps(cases), env=environ(prepared, ""),
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("process", ["main", "scheduler"])
@pytest.mark.parametrize("value", [*VALUES, "unset"])
def test_its_processes_are_left_as_they_are(found, value, process):
    """Not a variable, hook, handler, thread, file or function is another one; of ours there is
    only the module that has looked."""
    here, without = (dict(found[f"{name} {process}"]) for name in (value, WITHOUT))
    assert without.pop("ours") == []
    ours = {"tpc_server", "tpc_server.integrations", "tpc_server.integrations.sglang"}
    assert ours <= {*here.pop("ours")} <= {*ours, "tpc_server.version"}
    assert here == without
    assert here["hooks"] == [] and len(here["functions"]) > 100


@pytest.mark.parametrize("process", ["main", "scheduler"])
def test_what_would_be_seen(found, process):
    """The same look at a process that is ours."""
    here, without = (found[f"{name} {process}"] for name in ("tpc", WITHOUT))
    assert here["hooks"] == [
        "sglang.srt.managers.scheduler.Scheduler.get_rust_server_class",
        "sglang.srt.server_args.ServerArgs.resolve_once",
    ]
    moved = {n for n, where in here["functions"].items() if without["functions"][n] != where}
    assert {"RustServer.launch", "Scheduler.get_rust_server_class"} <= moved
    assert here["variables"].items() - without["variables"].items() >= {("SGLANG_RUST_SERVER", "1")}
    assert (here["signals"] != without["signals"]) == (process == "main")


def test_a_plugin_list_that_leaves_us_out(prepared, found):
    """The one way in which SGLang serves itself although we are asked for; the doctor tells."""
    assert found[f"{WITHOUT} main"]["hooks"] == []
    variables = {"SGLANG_FRONTEND": "tpc", "SGLANG_PLUGINS": "none of them"}
    for plugins, words, status in (("none of them", "leaves us out", 1), ("x,tpc", "ready to", 0)):
        env = environ(prepared, "", **{**variables, "SGLANG_PLUGINS": plugins})
        done = subprocess.run(
            [str(prepared.python), "-m", "tpc_server", "doctor"], env=env, capture_output=True,
            text=True, timeout=200, check=False,
        )  # fmt: skip
        assert done.returncode == status, done.stdout + done.stderr
        assert words in done.stdout.splitlines()[-1]


def check(sglang, side, count=None):
    """It is SGLang's own, and answers as it does."""
    recorded = json.loads((DATA / f"{side}.json").read_text("utf-8"))["generated"]
    assert sglang.frontends() == []
    assert call(sglang.address, "GET", "/server_info").json().get("frontend") != "tpc"
    if count is None:
        found = answers(sglang, ours=False)
    else:
        with Client(sglang.address, timeout=60) as client:
            client.call("POST", "/flush_cache")
        found = [ask(sglang.address, body, ours=False) for body in generated()[:count]]
    wrong = [d for d in differences(found, recorded[:count]) if not same(*d[1:])]
    assert wrong == []


def test_each_is_served(serve):
    """Both, at once."""
    rust = serve("", SGLANG_FRONTEND="rust", **RUST)
    python = serve("")
    for side, sglang in (("rust", rust), ("python", python)):
        with sglang.wait():
            check(sglang, side, FEW)


@pytest.mark.full
@pytest.mark.parametrize(
    ("side", "value"),
    [
        *(("rust", value) for value in (None, "", "rust")),
        *(("python", value) for value in (None, "0", "python")),
    ],
)
def test_all_requests_whatever_the_variable_says(serve, side, value):
    """SGLANG_RUST_SERVER is what tells SGLang which of its own it starts, not this variable."""
    variables = {} if value is None else {"SGLANG_FRONTEND": value}
    with serve("", **variables, **(RUST if side == "rust" else {})).wait() as sglang:
        check(sglang, side)
