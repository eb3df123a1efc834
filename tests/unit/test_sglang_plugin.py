"""The plugin that SGLang runs at start: when it does nothing, hooks in, refuses. Owner: pytest."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import sglang_fakes
from tpc_server.integrations.sglang import chosen, facts, refusals
from tpc_server.integrations.sglang.problem import Problem

TERM = signal.SIGTERM
LOAD = """
from sglang.srt.plugins import load_plugins
load_plugins()
"""
SERVE = (
    LOAD
    + """
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.server_args import ServerArgs
args = ServerArgs()
args.resolve_once()
found = Scheduler(args).maybe_init_rust_server()
"""
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sglang_fakes.write(tmp_path_factory.mktemp("site"))


def refused(folder: Path, code: str = LOAD, begin: str = sglang_fakes.BEGIN, **env: str) -> str:
    """The one line that a program ends with."""
    status, out, err = sglang_fakes.run(folder, code, begin, SGLANG_FRONTEND="tpc", **env)
    assert status == 1, (out, err)
    (line,) = err.splitlines()
    assert line.startswith("tpc-server: error: ")
    return line.removeprefix("tpc-server: error: ")


@pytest.mark.parametrize("value", ["rust", None])
def test_sglang_is_left_alone(folder, value):
    env = {} if value is None else {"SGLANG_FRONTEND": value}
    code = (
        LOAD
        + """
from sglang.srt.plugins.hook_registry import HookRegistry
assert not HookRegistry.hooks and "SGLANG_RUST_SERVER" not in os.environ
ours = {name for name in sys.modules if name.startswith("tpc_server.")}
assert ours == {"tpc_server.version", "tpc_server.integrations", "tpc_server.integrations.sglang"}
"""
    )
    assert sglang_fakes.run(folder, code, "import os, sys\n", **env) == (0, "", "")


def test_what_the_variable_may_say():
    assert not any(chosen(value) for value in (None, "", "0", "python", "rust", " Python ", "RUST"))
    assert chosen("tpc") and chosen(" TPC ")
    for value in ("1", "tpcx", "granian"):
        with pytest.raises(ValueError, match=f"SGLANG_FRONTEND={value}: "):
            chosen(value)


def test_it_hooks_in_and_the_flag_is_set_last(folder):
    code = (
        SERVE
        + """
import tpc_server
from sglang.srt.rust_server.server import RustServer
assert os.environ["SGLANG_RUST_SERVER"] == "1"
assert isinstance(found, RustServer) and type(found) is not RustServer
extension, keywords = found.server
assert extension is tpc_server
assert keywords == {"options": tpc_server.Options(), "frontends": 2}
"""
    )
    status, out, err = sglang_fakes.run(
        folder, code, SGLANG_FRONTEND=" TPC ", TPC_FRONTENDS="2", TPC_MODE="sidecar"
    )
    assert (status, out) == (0, ""), err


def test_what_cannot_be_had_together_is_refused_at_once(folder):
    line = refused(folder, TPC_FRONTENDS="0", TPC_MODE="sidecar")
    assert line.startswith("TPC_FRONTENDS=0: ")
    line = refused(folder, TPC_MODE="somewhere")
    assert line == "TPC_MODE=somewhere: must be in-process or sidecar"


def test_another_value_is_refused(folder):
    status, _, err = sglang_fakes.run(folder, LOAD, SGLANG_FRONTEND="tpcx")
    assert status == 1 and "SGLANG_FRONTEND=tpcx" in err and err.count("\n") == 1


def test_what_moved_in_sglang_is_named(folder):
    begin = (
        sglang_fakes.BEGIN
        + """
was = facts.gather()
was["callable"]["sglang.srt.rust_server.server:RustServer.launch"] = ["cls", "scheduler", "x"]
was["callable"]["sglang.srt.rust_server.server:RustServer.gone"] = ["self"]
facts.recorded = lambda: was
"""
    )
    line = refused(folder, begin=begin)
    assert line.startswith("SGLang 0.5.23 is not as 0.5.23")
    assert "callable RustServer.launch: no x" in line
    assert "callable RustServer.gone: is gone" in line


def test_it_makes_no_interpreter(folder, tmp_path):
    begin = "import os, sys\nfrom tpc_server.integrations.sglang import facts, plugin\n"
    begin += "facts.recorded = facts.gather\nplugin.needs_interpreter = lambda: True\n"
    line = refused(folder, begin=begin, XDG_CACHE_HOME=str(tmp_path), PATH=str(tmp_path))
    assert "run `tpc-server setup`" in line
    made = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert made <= {"probes.json", "failed.json"}


def test_a_hook_that_does_not_take_ends_the_process(folder):
    begin = sglang_fakes.BEGIN
    begin += (
        "from sglang.srt.plugins.hook_registry import HookRegistry\nHookRegistry.broken = True\n"
    )
    assert "did not take" in refused(folder, SERVE, begin)


def test_an_error_of_ours_ends_the_process_too(folder):
    begin = sglang_fakes.BEGIN + "def bad(): raise KeyError('x')\nfacts.gather = bad\n"
    assert refused(folder, begin=begin) == "KeyError: 'x'"


def test_the_offline_engine_is_refused(folder):
    code = "from sglang.srt.entrypoints.engine import Engine\nEngine()\n"
    assert "sgl.Engine" in refused(folder, code)


def test_arguments_are_refused_before_the_model_is_loaded(folder):
    code = SERVE.replace("ServerArgs()", "ServerArgs(is_embedding=True)")
    code = code.replace("args.resolve_once()", "args.resolve_once()\nprint('loads the model')")
    assert "--is-embedding" in refused(folder, code)


KNOWN = """
class Read:
    is_generation, is_multimodal = True, False
    def __init__(self, **given):
        vars(self).update(given)
    @classmethod
    def from_server_args(cls, args):
        print("read again")
        return cls(is_multimodal=args.multimodal)
ServerArgs._model_config = Read({known})
args = ServerArgs(multimodal={again})
"""


def test_a_model_is_refused_before_it_is_loaded(folder):
    """What SGLang read before it knew all arguments is read again before it counts."""
    for known, again, out in (
        ("", True, ""),
        ("is_multimodal=True", False, "read again\n"),
        ("is_generation=False", True, "read again\n"),
    ):
        made = KNOWN.format(known=known, again=again)
        code = SERVE.replace("args = ServerArgs()\n", made) + "print('loads the model')"
        status, said, err = sglang_fakes.run(folder, code, SGLANG_FRONTEND="tpc")
        if again and out:
            assert (status, said) == (1, out) and "a multimodal model" in err
        else:
            assert (status, said) == (0, out + "loads the model\n"), err


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        ("smg_grpc_mode", True, "--smg-grpc-mode: there is no gRPC"),
        ("grpc_mode", True, "gRPC"),
        ("grpc_port", 5, "--grpc-port 5: "),
        ("is_embedding", True, "only text generation"),
        ("enable_watermark", True, "watermark"),
        ("ssl_certfile", "secret.pem", "--ssl-certfile …: there is no TLS"),
        ("ssl_keyfile", "secret.pem", "TLS"),
        ("ssl_ca_certs", "secret.pem", "TLS"),
        ("enable_ssl_refresh", True, "TLS"),
        ("encoder_only", True, "encoder"),
        ("use_ray", True, "Ray"),
        ("nnodes", 2, "--nnodes 2: "),
    ],
)
def test_what_is_refused(flag, value, words):
    args = SimpleNamespace(nnodes=1, grpc_port=None)
    for mode in ("null", "decode", "prefill"):
        args.disaggregation_mode = mode
        refusals.by_arguments(args)
    setattr(args, flag, value)
    with pytest.raises(Problem) as found:
        refusals.by_arguments(args)
    text = str(found.value)
    assert words in text and "secret" not in text and "unset SGLANG_FRONTEND" in text


def test_flags_that_do_nothing_are_told(folder):
    code = SERVE.replace("ServerArgs()", "ServerArgs(log_requests=True, warmups=None, nnodes=1)")
    code = code.replace("args.resolve_once()", "args.resolve_once(); args.resolve_once()")
    begin = (
        sglang_fakes.BEGIN
        + """
from tpc_server.integrations.sglang import refusals
refusals._defaults = lambda kind: {"log_requests": False, "warmups": None, "nnodes": 2}
"""
    )
    status, _, err = sglang_fakes.run(folder, code, begin, SGLANG_FRONTEND="tpc")
    assert status == 0
    lines = [line for line in err.splitlines() if "without effect" in line]
    assert lines == ["SGLANG_FRONTEND=tpc: without effect here: --log-requests"]
    asked = {row[0] for row in refusals._REFUSED} | set(facts.FLAGS)
    assert not asked & set(refusals._PYTHONS)


def test_every_flag_that_is_asked_is_a_flag_of_sglang():
    asked = {row[0] for row in refusals._REFUSED} | {"nnodes"}
    assert asked <= set(facts.FLAGS)


def test_other_models_are_refused():
    refusals.by_model(SimpleNamespace(is_generation=True, is_multimodal=False))
    for generation, multimodal, words in ((False, False, "embedding"), (True, True, "multimodal")):
        model = SimpleNamespace(is_generation=generation, is_multimodal=multimodal)
        with pytest.raises(Problem, match=words):
            refusals.by_model(model)


def test_a_model_is_refused_before_the_port_opens(folder):
    begin = (
        sglang_fakes.BEGIN
        + """
from sglang.srt.managers.scheduler import Model
Model.is_multimodal = True
from sglang.srt.rust_server.server import RustServer
RustServer._server_kwargs = None  # never gets there
"""
    )
    assert "multimodal" in refused(folder, SERVE, begin)


def test_keys_go_into_options_and_a_bad_one_is_not_shown(folder):
    code = (
        SERVE.replace("ServerArgs()", "ServerArgs(api_key='k1', admin_api_key='k2')")
        + """
options = found.server[1]["options"]
assert (options.api_keys, options.admin_api_keys) == (("k1",), ("k2",))
assert "k1" not in repr(options)
"""
    )
    status, _, err = sglang_fakes.run(folder, code, SGLANG_FRONTEND="tpc")
    assert status == 0, err
    bad = SERVE.replace("ServerArgs()", "ServerArgs(api_key=' s3cret ')")
    line = refused(folder, bad)
    assert "--api-key" in line and "s3cret" not in line


DRAINING = """
import ctypes, multiprocessing, os, threading, time
from multiprocessing.connection import wait
from tpc_server.integrations.sglang import drain

class Server:
    def __init__(self, takes):
        self.takes = takes

    def drain(self, seconds):
        os.write(1, f"draining {seconds}\\n".encode())  # whole: others write there, too
        time.sleep(self.takes)
        os.write(1, f"drained {self.takes}\\n".encode())

    def leave(self):
        os.write(1, b"no path is left\\n")

def with_parent():
    # As SGLang's schedulers: they die with the process that started them.
    ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)

def leader(ready, takes):
    with_parent()
    drain.stand_by(Server(takes), 7.5)
    ready.set()
    while True:
        time.sleep(1)

def refuses(ready):
    drain.fail("no\\nport")

def follower(ready):
    with_parent()
    del os.environ["SGLANG_RUST_SERVER"]
    load()
    ready.set()
    while True:
        time.sleep(1)

def load():
    __import__("sglang.srt.plugins", fromlist=["x"]).load_plugins()

def watch(children):
    # As SGLang, which ends all when one has ended.
    wait([child.sentinel for child in children])
    print("one has ended", flush=True)

def main(*targets):
    load()
    context = multiprocessing.get_context("fork")
    children = []
    for target, *more in targets:
        ready = context.Event()
        child = context.Process(target=target, args=(ready, *more), daemon=True)
        child.start()
        children.append(child)
        ready.wait()
    print(*[child.pid for child in children], flush=True)
    threading.Thread(target=watch, args=(children,), daemon=True).start()
    for child in children:
        child.join()
"""


def ended(
    folder: Path, code: str, signals: Callable[[int, list[int]], None]
) -> tuple[int, list[str]]:
    """Status and output of a program that signals came to, once all of its processes have gone."""
    with group_of(folder, code) as process:
        assert process.stdout is not None
        children = [int(pid) for pid in process.stdout.readline().split()]
        signals(process.pid, children)
        out, err = process.communicate(timeout=50)
    assert not err
    return process.returncode, out.splitlines()


@contextmanager
def group_of(folder: Path, code: str) -> Iterator[subprocess.Popen[str]]:
    """The program, in a process group of its own, of which nothing is left afterwards."""
    with sglang_fakes.start(folder, DRAINING + code, group=True, SGLANG_FRONTEND="tpc") as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_sigterm_drains_first_then_goes_on(folder):
    status, lines = ended(folder, "main((leader, 0.2))\n", lambda pid, _: os.kill(pid, TERM))
    assert status == -TERM
    assert lines == ["draining 7.5", "drained 0.2", "no path is left"]


@pytest.mark.parametrize("group", [False, True], ids=["main", "group"])
def test_no_scheduler_ends_while_another_drains(folder, group):
    """Leaders of data parallel attention: one has nothing to do, the other takes longer than the
    first would wait alone. And processes without a frontend, where the signal comes to all."""
    code = "drain._GRACE_S = 0.5\nmain((leader, 0.2), (follower,), (leader, 3.0))\n"

    def signals(pid, _):
        (os.killpg if group else os.kill)(pid, TERM)

    status, lines = ended(folder, code, signals)
    assert status == -TERM
    done = ["drained 0.2", "no path is left", "drained 3.0", "no path is left"]
    assert lines == ["draining 7.5", "draining 7.5", *done]


@pytest.mark.parametrize("who", [0, 1], ids=["leader", "follower"])
def test_a_signal_to_one_scheduler_ends_it(folder, who):
    """Its requests first; the others are SGLang's affair, which sees it."""
    code = "drain._GRACE_S = 0.5\nmain((leader, 0.2), (follower,), (leader, 0.0))\n"

    def signals(pid, children):
        os.kill(children[who], TERM)
        while runs(children[who]):
            time.sleep(0.01)
        os.kill(pid, TERM)

    status, lines = ended(folder, code, signals)
    assert status == -TERM
    drained = lines.index("drained 0.2")
    assert (drained < lines.index("one has ended")) == (who == 0)


def test_processes_that_a_scheduler_forks_end_at_once(folder):
    """Those have its handler, too; of a pool, whose end is waited for."""
    code = """
def leader(ready):
    drain._GRACE_S = 60.0
    drain.stand_by(Server(60.0), 60.0)
    here, there = os.pipe()
    worker = os.fork()
    if not worker:
        os.write(there, b"x")  # what comes before Python knows that it forked is forgotten
        time.sleep(60)
    os.read(here, 1)
    os.kill(worker, 15)
    print(os.waitpid(worker, 0)[1], flush=True)
    ready.set()
    time.sleep(60)

main((leader,))
"""
    with group_of(folder, code) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{int(TERM)}\n"


def test_a_scheduler_that_cannot_serve_ends_all_with_one_line(folder):
    line = refused(folder, DRAINING + "main((refuses,))\n")
    assert line == "no port"
