"""The plugin that SGLang runs at start: when it does nothing, hooks in, refuses. Owner: pytest."""

from __future__ import annotations

import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import sglang_fakes
from tpc_server.integrations.sglang import chosen, facts, refusals
from tpc_server.integrations.sglang.problem import Problem

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
import multiprocessing, time
from tpc_server.integrations.sglang import drain

class Server:
    def drain(self, seconds):
        print("draining", seconds, flush=True)
        time.sleep(0.2)
        print("drained", flush=True)

def scheduler(ready):
    drain.stand_by(Server(), 7.5)
    ready.set()
    while True:
        time.sleep(1)

def refuses(ready):
    drain.fail("no\\nport")

def main(target):
    load = __import__("sglang.srt.plugins", fromlist=["x"]).load_plugins
    load()
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    child = context.Process(target=target, args=(ready,), daemon=True)
    child.start()
    ready.wait()
    print(child.pid, flush=True)
    child.join()
"""


def test_sigterm_drains_first_then_goes_on(folder):
    with sglang_fakes.start(
        folder, DRAINING + "main(scheduler)\n", SGLANG_FRONTEND="tpc"
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert int(process.stdout.readline()) != process.pid
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=50)
    assert process.returncode == -signal.SIGTERM, err
    assert out == "draining 7.5\ndrained\n"


def test_a_scheduler_that_cannot_serve_ends_all_with_one_line(folder):
    line = refused(folder, DRAINING + "main(refuses)\n")
    assert line == "no port"
