"""Command line, log lines, messages between cores, counters, listening, start-up guards."""

from __future__ import annotations

import importlib
import io
import json
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import tiny_tokenizer
from tpc_server import cli, foreign_flags, frame, launch, runtime, signals
from tpc_server.__main__ import main as program
from tpc_server.banner import banner
from tpc_server.bootstrap import cli as bootstrap_cli
from tpc_server.bootstrap import prepared
from tpc_server.boundary import wire
from tpc_server.counters import NAMES, WORDS, Counters, snapshot
from tpc_server.engines import registry
from tpc_server.engines.llama.engine import LlamaEngine
from tpc_server.engines.llama.settings import LlamaSettings
from tpc_server.listen import ListenError, bind_tcp, bind_uds
from tpc_server.log import LogWriter

ROOT = Path(__file__).parents[2]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tpc_server", *words], capture_output=True, text=True,
        timeout=120, check=False, cwd=ROOT,
    )  # fmt: skip


def test_two_hang_ups_at_once_are_one(monkeypatch):
    """A terminal that closes tells by the shell, and by the kernel when the shell has ended."""
    now = [100.0]
    monkeypatch.setattr(signals, "time", SimpleNamespace(monotonic=lambda: now[0]))
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, lambda n, frame: None) for number in numbers}
    try:
        counted = signals.Signals()
        woken: list[int] = []
        counted.wake = lambda: woken.append(counted.count)
        for at, number, count in (
            (100.0, signal.SIGHUP, 1),
            (100.1, signal.SIGHUP, 1),
            (100.2, signal.SIGTERM, 2),
            (105.0, signal.SIGHUP, 3),
        ):
            now[0] = at
            signal.raise_signal(number)
            assert counted.count == count
        assert woken == [1, 2, 3] and counted.name == "SIGHUP"
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signals.Signals()
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN  # as nohup wants it
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_help_and_version():
    shown = run("--help")
    assert shown.returncode == 0
    for word in ("curl", "--cores", "default: 30000", "--drain-timeout", "synthetic engine"):
        assert word in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 100
    assert run("help").stdout == shown.stdout
    assert run("--version").stdout.startswith("tpc_server 0.")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--port", "99999"], "99999"),
        (["--nonsense"], "--nonsense"),
        (["bogus"], "unknown command bogus; commands are serve, setup"),
        (["sttus"], "unknown command sttus (did you mean status?)"),
        (["--uds", "README.md"], "cannot listen on README.md: a file that is no socket is there"),
        (["--sream-interval", "2"], "unknown flag --sream-interval (did you mean --stream-interv"),
        (["--max-model-len", "9"], "unknown flag --max-model-len (here it is --context-length)"),
        (["--workers=2"], "unknown flag --workers (here it is --cores)"),
        (["--tp", "2", "x"], "unknown flag --tp (an engine's: SGLang takes it where we serve it,"),
        (
            ["--engine", "synthetic", "--kv-tokens", "5"],
            "error: --kv-tokens is of the llama engine, and --engine is synthetic",
        ),
        (["--synthetic-tick-ms", "5"], "--synthetic-tick-ms is of the synthetic engine, and --eng"),
        (["--prefill-tokens", "0"], "--prefill-tokens must be at least 1"),
        (["--max-queued-requests", "-1"], "-1 is negative"),
        (["--max-body-size", "lots"], "lots"),
        (["--max-running-requests", "0"], "--max-running-requests"),
        (["--cores", "ingress=zebra"], "--cores"),
        (["--cores", "0,4000"], "--cores: no CPU 4000 here, this process may use "),
        (["--model-path", "/nowhere/model.gguf"], "/nowhere/model.gguf"),
        (["--engine", "synthetic", "--model-path", "/nowhere"], "/nowhere"),
        (["--model-path", "org/no-such-model"], "`hf download org/no-such-model`"),
        (["--tool-call-parser", "nope"], "'nope' is not known; known are hermes, json, qwen"),
        (["--reasoning-parser", "nope"], "'nope' is not known; known are deepseek-r1"),
        (
            ["--preferred-sampling-params", '{"temp":1}'],
            "--preferred-sampling-params: unknown field",
        ),
        (
            ["--preferred-sampling-params", '{"top_p":7}'],
            "--preferred-sampling-params: top_p must be in (0, 1], got 7",
        ),
        (["--preferred-sampling-params", "{"], "--preferred-sampling-params {: not valid JSON"),
        (
            ["--preferred-sampling-params", "[]"],
            "--preferred-sampling-params []: not a JSON object",
        ),
        (
            ["--default-chat-template-kwargs", "{"],
            "--default-chat-template-kwargs {: not valid JSON",
        ),
    ],
)
def test_bad_flags_end_with_one_clear_line(words, told):
    done = run(*words)
    assert done.returncode in (1, 2)
    assert told in done.stderr and "Traceback" not in done.stderr
    assert told in done.stderr.splitlines()[0] and len(done.stderr.splitlines()) <= 2


def test_other_servers_names_of_flags_are_none_of_ours_and_lead_to_ours():
    ours = set(cli.build_parser()._option_string_actions)
    for name, here in foreign_flags._HERE.items():
        assert name not in ours and here in ours, name
    others = [name for names in foreign_flags._NOT_HERE.values() for name in names]
    assert not ours & set(others) and len(set(others)) == len(others)
    dests = {action.dest for action in cli.build_parser()._actions}
    assert {*cli.OF_LLAMA, *cli.OF_SYNTHETIC} <= dests


def test_flags_of_the_embedded_engine_reach_it(monkeypatch):
    words = (
        "--max-running-requests 3 --max-queued-requests 0 --kv-tokens 4096 --prefill-tokens 32 "
        "--prefill-tokens-busy 8 --no-prefix-cache --stream-interval 4 --context-length 512 "
        "--weight-version w --model-path ./m --skip-tokenizer-init"
    )
    loaded = []

    def load(path, settings, *rest):
        loaded.append((path, settings))
        raise registry.EngineProblem("enough")

    monkeypatch.setattr(LlamaEngine, "load", load)
    plain = SimpleNamespace(scheduler_cpus=())
    for flags in (words.split(), ["--model-path", "./m", "--skip-tokenizer-init"]):
        with pytest.raises(registry.EngineProblem, match="enough"):
            registry.create(cli.parse(flags), plain, lambda *a: None)
    assert loaded[0] == (
        "./m",
        LlamaSettings(
            max_running_requests=3, max_queued_requests=0, context_len=512, kv_tokens=4096,
            prefill_tokens=32, prefill_tokens_busy=8, prefix_cache=False, stream_interval=4,
            weight_version="w",
        ),
    )  # fmt: skip
    # What the help shows as defaults are the engine's own.
    assert loaded[1] == ("./m", LlamaSettings())


def test_a_hub_id_is_found_in_the_local_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    snapshot = tmp_path / "models--org--name" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    assert registry.local_model("org/name", "abc") == str(snapshot)
    for path in ("/no/where", "./x", "gone.gguf", str(tmp_path)):
        assert registry.local_model(path, None) == path  # whoever loads it says what is wrong
    with pytest.raises(registry.EngineProblem, match="Models are not downloaded from here"):
        registry.local_model("org/name", None)  # another revision
    loaded = []
    monkeypatch.setattr(registry, "_llama", lambda given, path, *rest: loaded.append(path))
    flags = cli.parse(["--model-path", "org/name", "--revision", "abc"])
    registry.create(flags, None, lambda *a: None)
    assert loaded == [str(snapshot)] and flags.served_model_name == "org/name"


def test_a_tokenizer_is_all_the_synthetic_engine_needs(tmp_path, monkeypatch):
    def fetched():
        raise AssertionError("the default model is fetched")

    monkeypatch.setattr(registry, "_default_model", fetched)
    folder = tiny_tokenizer.write(tmp_path / "named")
    for path in (folder, folder / "tokenizer.json"):
        flags = cli.parse(["--engine", "synthetic", "--tokenizer-path", str(path)])
        engine = registry.create(flags, None, lambda *a: None)
        assert engine.model_name == "named" and engine.vocab_size > 256
    monkeypatch.chdir(folder)
    flags = cli.parse(["--engine", "synthetic", "--tokenizer-path", "."])
    assert registry.create(flags, None, lambda *a: None).model_name == "named"
    with pytest.raises(AssertionError, match="fetched"):
        registry.create(cli.parse(["--tokenizer-path", "."]), None, lambda *a: None)


@pytest.mark.parametrize(
    ("text", "value"), [("64k", 65536), ("8m", 8 << 20), ("1GiB", 1 << 30), ("12", 12)]
)
def test_sizes(text, value):
    assert cli.size(text) == value


def test_log_lines():
    stream = io.StringIO()
    log = LogWriter("info", "json", stream)
    log.log("info", "hello", core=1)
    log.log("debug", "not shown")
    log.close()
    (line,) = stream.getvalue().splitlines()
    entry = json.loads(line)
    assert entry["message"] == "hello" and entry["core"] == 1 and entry["level"] == "info"
    stream = io.StringIO()
    log = LogWriter("warning", "text", stream)
    log.log("error", "died", core=2, why="a b", stack="Traceback: x")
    log.close()
    assert 'died core=2 why="a b"\nTraceback: x' in stream.getvalue()


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 62), 1 << 62) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4).map(tuple) | st.lists(inner, max_size=4),
)


@given(st.tuples(st.integers(1, 40), PLAIN, PLAIN))
def test_messages_cross_unchanged(message):
    assert frame.decode(frame.encode(message)) == message


@given(
    st.binary(max_size=60),
    st.lists(st.tuples(st.sampled_from(["input_ids", "x"]), st.binary(max_size=40)), max_size=3),
)
def test_request_records(header, buffers):
    parts = wire.request_parts(header, [(n, wire.UINT8, b) for n, b in buffers])
    payload = b"".join(parts)
    found, places = wire.split_request(payload)
    assert found == header
    assert [(n, payload[o : o + s]) for n, _, o, s in places] == buffers
    if places:
        assert places[0][2] % 8 == 0


@given(st.binary(max_size=60), st.lists(st.binary(max_size=40), max_size=4))
def test_frame_records(header, columns):
    found, views = wire.split_frame(b"".join(wire.frame_parts(header, columns)))
    assert found == header and [bytes(v) for v in views] == columns


def test_counters_are_published():
    counters = Counters()
    counters.rows = 5
    words = [0] * WORDS
    counters.publish(words, 0)
    assert snapshot(words, 0)["rows"] == 5
    assert len(NAMES) <= WORDS


def test_listening():
    groups, port = bind_tcp("127.0.0.1", 0, 3, 8)
    assert len(groups) == 3 and {s.getsockname()[1] for (s,) in groups} == {port}
    with pytest.raises(ListenError, match=f"127.0.0.1:{port}"):
        bind_tcp("127.0.0.1", port, 1, 8)
    with pytest.raises(ListenError, match="cannot resolve"):
        bind_tcp("no such host.invalid", 1, 1, 8)
    for (sock,) in groups:
        sock.close()


def test_every_address_of_a_name_is_listened_on(monkeypatch):
    found = [
        (socket.AF_INET, 1, 6, "", ("127.0.0.1", 0)),
        (socket.AF_INET, 1, 6, "", ("127.0.0.2", 0)),
    ]
    absent = [(socket.AF_INET6, 1, 6, "", ("2001:db8::1", 0, 0, 0))]
    names = {"both": [*found, found[0]], "one": [found[0], *absent], "none": absent}
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *a, **k: names[host])
    groups, port = bind_tcp("both", 0, 2, 8)
    assert [[s.getsockname() for s in group] for group in groups] == [
        [("127.0.0.1", port), ("127.0.0.2", port)]
    ] * 2
    with pytest.raises(ListenError, match=f"127.0.0.1:{port}"):
        bind_tcp("both", port, 1, 8)
    for group in groups:
        for sock in group:
            sock.close()
    (only,), port = bind_tcp("one", 0, 1, 8)  # a name with an address this machine has not
    assert [s.getsockname() for s in only] == [("127.0.0.1", port)]
    only[0].close()
    with pytest.raises(ListenError, match="2001:db8::1"):
        bind_tcp("none", 0, 1, 8)


def test_the_port_chosen_for_one_address_is_free_at_all_of_them(monkeypatch):
    """The system chooses for the first one only: taken elsewhere, another is tried."""
    found = [(socket.AF_INET, 1, 6, "", (f"127.0.0.{k}", 0)) for k in (1, 2)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: found)
    taken = socket.socket()
    taken.bind(("127.0.0.2", 0))
    taken.listen(1)
    real, tries = socket.socket.bind, []

    def bind(sock, address):
        if address == ("127.0.0.1", 0):
            tries.append(address)
            if len(tries) == 1:
                address = ("127.0.0.1", taken.getsockname()[1])
        return real(sock, address)

    class Socket(socket.socket):
        pass

    Socket.bind = bind
    monkeypatch.setattr(socket, "socket", Socket)
    (group,), port = bind_tcp("any", 0, 1, 8)
    assert len(tries) == 2 and port != taken.getsockname()[1]
    for sock in (*group, taken):
        sock.close()


def test_a_left_over_unix_socket_is_replaced_and_a_live_one_is_not(tmp_path):
    path = str(tmp_path / "s")
    first = bind_uds(path, 2, 8)
    with pytest.raises(ListenError):
        bind_uds(path, 1, 8)
    first.groups[0][0].close()  # as if it had been killed
    second = bind_uds(path, 1, 8)
    client = socket.socket(socket.AF_UNIX)
    client.connect(path)
    client.close()
    second.close()


def test_everything_that_serving_imports_leaves_the_gil_off():
    code = "from tpc_server import runtime; print(runtime.import_all(), runtime.gil_enabled())"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True,
        cwd=ROOT,
    )  # fmt: skip
    assert done.stdout.split() == ["None", str(not runtime.free_threaded_build())]


def test_the_import_that_switches_the_gil_on_is_named(monkeypatch, capsys):
    """The first one after which it is on; a package that is not there is passed over."""
    on = []
    monkeypatch.setattr(runtime, "IMPORTS", ("json", "no_such_package_here", "guilty", "innocent"))
    monkeypatch.setattr(runtime, "gil_enabled", lambda: bool(on))
    monkeypatch.setattr(runtime, "free_threaded_build", lambda: True)
    real = importlib.import_module

    def load(name):
        if name == "guilty":
            on.append(name)
        return None if name in ("guilty", "innocent") else real(name)

    monkeypatch.setattr(importlib, "import_module", load)
    lenient, strict = (cli.parse(words) for words in ([], ["--require-free-threading"]))
    launch._guard_gil(lenient)
    told = capsys.readouterr().err
    assert "warning: the GIL is on (importing guilty switched it on)" in told
    on.clear()
    with pytest.raises(launch.Problem, match="the GIL is on: importing guilty switched it on"):
        launch._guard_gil(strict)
    # It was on before: no import is to blame.
    assert runtime.import_all() is None
    monkeypatch.setattr(runtime, "free_threaded_build", lambda: False)
    monkeypatch.delenv("TPC_PYTHON", raising=False)
    with pytest.raises(launch.Problem, match="the GIL is on: this is a GIL build; `tpc-server se"):
        launch._guard_gil(strict)
    monkeypatch.setenv("TPC_PYTHON", "python3")  # who names one has chosen
    with pytest.raises(launch.Problem, match=r"the GIL is on: this is a GIL build$"):
        launch._guard_gil(strict)


def test_a_program_with_a_gil_goes_on_as_what_setup_has_prepared(monkeypatch, capsys):
    became, served = [], []

    def serve(given):
        served.append(given)
        return 0

    monkeypatch.setattr(bootstrap_cli, "become", lambda *words: became.append(words))
    monkeypatch.setattr(launch, "run", serve)
    monkeypatch.setattr(prepared, "prepared_python", lambda strict: None)
    for build in (True, False):  # no other interpreter is wanted, or there is none
        monkeypatch.setattr(runtime, "free_threaded_build", lambda build=build: build)
        assert program(["--port", "1"]) == 0
    assert len(served) == 2 and not became and capsys.readouterr().err == ""
    monkeypatch.setattr(prepared, "prepared_python", lambda strict: Path("/env/bin/python"))
    program(["serve", "--port", "1"])
    assert became == [(Path("/env/bin/python"), ["-m", "tpc_server", "--port", "1"])]
    assert "has a GIL, going on with /env/bin/python" in capsys.readouterr().err
    with pytest.raises(SystemExit):  # what is wrong is told by whoever was asked
        program(["--nosuch"])
    assert len(became) == 1
    monkeypatch.undo()
    monkeypatch.setattr(runtime, "free_threaded_build", lambda: False)
    monkeypatch.setenv("TPC_PYTHON", "no-such-python")
    with pytest.raises(SystemExit, match="error: TPC_PYTHON=no-such-python: no such program"):
        program([])
    assert prepared.prepared_python() is None


@pytest.mark.parametrize(
    ("host", "shown", "tried"),
    [
        ("0.0.0.0", "0.0.0.0", "127.0.0.1"), ("::", "[::]", "[::1]"),
        ("127.0.0.1", "127.0.0.1", "127.0.0.1"), ("example.org", "example.org", "example.org"),
    ],
)  # fmt: skip
def test_the_banner_names_an_address_that_can_be_called(host, shown, tried):
    server = SimpleNamespace(
        http_port=31, setup=SimpleNamespace(info=SimpleNamespace(served="m")),
        plan=SimpleNamespace(describe=lambda: "cores"),
    )  # fmt: skip
    flags = cli.parse(["--host", host])
    flags.api_keys = ()
    text = banner(flags, server, SimpleNamespace(describe=lambda: "e"), 1.0)
    assert f"ready in 1.0 s at http://{shown}:31\n" in text
    assert f"try     curl -N http://{tried}:31/generate " in text
