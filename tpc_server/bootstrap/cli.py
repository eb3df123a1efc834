"""The commands of `./tpc`. Owner: one process, until it becomes the program that was asked for."""

from __future__ import annotations

import importlib
import os
import runpy
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from .cache import sub
from .interpreter import Tried, find
from .legs import root_of, run_legs
from .locks import digest
from .probe import Interpreter
from .progress import BootstrapError, say
from .venv import add, environment

PACKAGE = Path(__file__).resolve().parents[1]
HELP = """\
tpc: a thread-per-core LLM serving frontend on free-threaded CPython

  ./tpc serve [ARGS]    start the server; without ARGS it serves SmolLM2-135M-Instruct
                        (`./tpc serve --help` lists them); with --attach SOCKET the
                        API of a scheduler that runs elsewhere
  ./tpc test [ARGS]     ruff, mypy and all tests; ARGS go to pytest
                          --full         also the tests that take very long
                          --sglang       also those with the real SGLang (5 GB, made once)
                          --offline      without the tests that fetch data once
                          --pytest-only  without ruff and mypy
  ./tpc bench [ARGS]    measure frontends side by side (`./tpc bench --help`)
  ./tpc doctor          what was found here and why: interpreter, packages, core plan, cache
  ./tpc setup           make everything ready (and try again what failed lately)
  ./tpc status [--port N]  how the server on that port is (default 30000)
  ./tpc reload [--port N]  a fresh frontend process for it, where it has one
  ./tpc python [ARGS]   the interpreter, with all packages
  ./tpc help            this page; `./tpc --version`: the version

The first run finds or builds an interpreter and an environment; both stay in the cache
($XDG_CACHE_HOME or ~/.cache)/tpc_server. Nothing else on this machine is changed, except that
missing build packages are installed when you are root on Debian.

  TPC_PYTHON=PROGRAM    use this interpreter (python3.14t, or an ordinary one >= 3.11)
  TPC_PGO=1             build with profile-guided optimization (twice as long, once)
"""


def run_command(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status; `serve`, `bench`, `python` do not return."""
    words = list(sys.argv[1:] if argv is None else argv)
    name = words.pop(0) if words else "help"
    command = COMMANDS.get(name)
    if command is None:
        say(f"no command {name!r}; `./tpc help` lists them")
        return 2
    if name not in HELPS_ITSELF and ("--help" in words or "-h" in words):
        sys.stdout.write(PAGES.get(name, HELP))
        return 0
    unknown = [word for word in words if word not in TAKES.get(name, words)]
    if unknown:
        say(f"{name}: unknown argument {unknown[0]}; `{name} --help` shows what it takes")
        return 2
    before = {
        number: signal.signal(number, _terminate)
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) != signal.SIG_IGN  # nohup
    }
    try:
        return command(words)
    except BrokenPipeError:
        # Whoever reads our output has had enough; what is still buffered goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except BootstrapError as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        say("stopped")
        return 130
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _terminate(signum: int, frame: FrameType | None) -> NoReturn:
    """SIGTERM, or a closed terminal, ends a step like Ctrl-C does: children ended, half-made
    things removed."""
    raise SystemExit(128 + signum)


def _ready(*, retry: bool = False) -> tuple[Interpreter, Path]:
    tried: list[Tried] = []
    interpreter = find(tried, retry=retry)
    return interpreter, environment(interpreter)


def child_env() -> dict[str, str]:
    """The environment for programs of ours: this package importable, and nothing beside it."""
    paths = [str(package_home()), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    env.pop("PYTHONHOME", None)
    return env


def package_home() -> Path:
    """A folder to import tpc_server from: the checkout, or one with a link to the installed one.

    The folder of an installed package will not do: it holds other packages, of another Python.
    """
    root = root_of(PACKAGE)
    if root is not None:
        return root
    home = sub("package", digest(str(PACKAGE)))
    link = home / PACKAGE.name
    if not link.exists():
        try:
            link.symlink_to(PACKAGE, target_is_directory=True)
        except FileExistsError:
            pass
    return home


def become(python: Path, argv: Sequence[str]) -> NoReturn:
    """This process goes on as Python; signals and exit status need no passing on."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(python, [str(python), *argv], child_env())


def _program() -> Any:
    """The server's flags: the one module of the rest that runs on every Python as it is."""
    return importlib.import_module(f"{__package__.rpartition('.')[0]}.cli")


def serve(words: Sequence[str]) -> int:
    # Help, the version and bad flags are answered here: none of them is worth a build.
    if not any(word.partition("=")[0] == "--attach" for word in words):
        _program().parse(list(words), "./tpc serve")
    _, python = _ready()
    become(python, ["-m", "tpc_server", *words])


def control(command: str, words: Sequence[str]) -> int:
    asking = importlib.import_module(f"{__package__.rpartition('.')[0]}.link.control")
    return int(asking.main(command, list(words), "./tpc"))


def status(words: Sequence[str]) -> int:
    return control("status", words)


def reload(words: Sequence[str]) -> int:
    return control("reload", words)


def python(words: Sequence[str]) -> int:
    _, found = _ready()
    become(found, words)


def bench(words: Sequence[str]) -> int:
    perf = _checkout() / "perf"
    # Help and bad flags are answered here, as for `serve`.
    runpy.run_path(str(perf / "harness" / "bench_flags.py"))["parse"](list(words))
    _, python = _ready()
    become(python, [str(perf / "stream.py"), *words])


def test(words: Sequence[str]) -> int:
    tried: list[Tried] = []
    return run_legs(_checkout(), find(tried), child_env(), words)


def setup(words: Sequence[str]) -> int:
    from .fetch import model_path

    interpreter, python = _ready(retry=True)
    if "--test" in words:
        add(python, "test")
    beside = root_of(PACKAGE) is None and beside_sglang()
    model = None if beside else model_path()  # SGLang brings its own
    say(f"ready: {interpreter}")
    say(f"python {python}")
    if beside:
        say("start it: SGLANG_FRONTEND=tpc sglang serve --model-path ...")
        return 0
    say(f"model {model}")
    if root_of(PACKAGE) is None:
        say(f"start it: PYTHONPATH={package_home()} {python} -m tpc_server")
    return 0


def beside_sglang() -> bool:
    """Whether this package is installed where SGLang is."""
    from importlib import metadata

    try:
        metadata.version("sglang")
    except metadata.PackageNotFoundError:
        return False
    return True


def doctor(words: Sequence[str]) -> int:
    from .doctor import report

    return report(child_env())


def show_help(words: Sequence[str]) -> int:
    sys.stdout.write(HELP)
    return 0


def show_version(words: Sequence[str]) -> int:
    print(f"tpc_server {_program().__version__}")
    return 0


def _checkout() -> Path:
    root = root_of(PACKAGE)
    if root is None:
        raise BootstrapError(
            "this command needs a checkout; the installed package has no such files"
        )
    return root


HELPS_ITSELF = ("serve", "bench", "python", "status", "reload")
#: What a command takes that passes nothing on.
TAKES: dict[str, tuple[str, ...]] = {"setup": ("--test",), "doctor": ()}
PAGES = {
    "setup": """\
setup: make everything ready that serving needs, and try again what failed lately

  ./tpc setup [--test]   (or `tpc-server setup`)

Finds or builds a free-threaded CPython 3.13, makes an environment of pinned packages, fetches the
default model; all of it in ($XDG_CACHE_HOME or ~/.cache)/tpc_server. Prints where things are.

  --test    the packages of the test suite as well
""",
    "doctor": """\
doctor: print what was found here and why; changes and builds nothing

  ./tpc doctor   (or `tpc-server doctor`)

Interpreter and GIL, packages, core plan, tools, SGLang, cache: of the environment that
`tpc-server doctor` is run in where that is free-threaded, else of what `./tpc serve` would take.
Exit status 0: serving would start at once; 1: something has to be made or mended first, the last
line says what.
""",
}
COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "serve": serve,
    "test": test,
    "bench": bench,
    "doctor": doctor,
    "setup": setup,
    "status": status,
    "reload": reload,
    "python": python,
    "help": show_help,
    "--help": show_help,
    "-h": show_help,
    "--version": show_version,
    "version": show_version,
}
