"""A stand-in for SGLang's package: what the plugin hooks, and how plugins are run. Owner: tests.

`write(folder)` makes it; `run(folder, code)` runs a program beside it in a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

FILES = {
    "sglang/__init__.py": "",
    "sglang/srt/__init__.py": "",
    "sglang/srt/plugins/__init__.py": """
        import os, traceback
        from .hook_registry import HookRegistry

        def load_plugins():
            from tpc_server.integrations.sglang import activate
            try:
                activate()
            except Exception:
                traceback.print_exc()
            HookRegistry.apply()
        """,
    "sglang/srt/plugins/hook_registry.py": """
        import enum, os, pkgutil

        class HookType(enum.Enum):
            AROUND = 1
            AFTER = 2

        class HookRegistry:
            hooks = []
            broken = False

            @classmethod
            def register(cls, target, hook, hook_type=HookType.AFTER, *, source=None):
                assert "SGLANG_RUST_SERVER" not in os.environ
                cls.hooks.append((target, hook, hook_type))

            @classmethod
            def apply(cls):
                for target, hook, kind in cls.hooks:
                    owner, _, name = target.rpartition(".")
                    owner = pkgutil.resolve_name(owner)
                    if cls.broken and "rust" in name:
                        continue
                    setattr(owner, name, cls.wrap(getattr(owner, name), hook, kind))

            @staticmethod
            def wrap(original, hook, kind):
                def around(*args):
                    return hook(original, *args)
                def after(*args):
                    result = original(*args)
                    changed = hook(result, *args)
                    return result if changed is None else changed
                return around if kind is HookType.AROUND else after
        """,
    "sglang/srt/managers/__init__.py": "",
    "sglang/srt/managers/scheduler.py": """
        from sglang.srt.rust_server.server import RustServer

        class Model:
            is_generation = True
            is_multimodal = False

        class Scheduler:
            model_config = Model()

            def __init__(self, server_args):
                self.server_args = server_args

            def get_rust_server_class(self):
                return RustServer

            def maybe_init_rust_server(self):
                return self.get_rust_server_class().launch(self)
        """,
    "sglang/srt/rust_server/__init__.py": "",
    "sglang/srt/rust_server/server.py": """
        class RustServer:
            def __init__(self, server, http_port):
                self.server = server
                self.http_port = http_port

            @classmethod
            def _load_extension(cls):
                raise RuntimeError("the stock server")

            @classmethod
            def _server_kwargs(cls, scheduler):
                return {}

            @classmethod
            def launch(cls, scheduler):
                extension = cls._load_extension()
                return cls((extension, cls._server_kwargs(scheduler)), 30000)
        """,
    "sglang/srt/arg_groups/__init__.py": "",
    "sglang/srt/arg_groups/overrides.py": """
        def resolving_view(args):
            return args
        """,
    "sglang/srt/server_args.py": """
        class ServerArgs:
            nnodes = 1
            def __init__(self, **given):
                self.__dict__.update(given)
            def __getattr__(self, name):
                if name.startswith("_"):
                    raise AttributeError(name)
                return None
            def resolve_once(self):
                pass
        """,
    "sglang/srt/entrypoints/__init__.py": "",
    "sglang/srt/entrypoints/engine.py": """
        from sglang.srt.plugins import load_plugins

        class Engine:
            def __init__(self):
                load_plugins()
        """,
    "sglang-0.5.23.dist-info/METADATA": "Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.23\n",
}
# Every program begins so: the fake is as it was recorded, and an interpreter is prepared.
BEGIN = """
import os, sys
from tpc_server.integrations.sglang import facts, plugin
facts.recorded = facts.gather
plugin.needs_interpreter = lambda: False
"""


def write(folder: Path) -> Path:
    """The package, in `folder`."""
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text).lstrip("\n"), encoding="utf-8")
    return folder


def start(
    folder: Path, code: str, begin: str = BEGIN, group: bool = False, **env: str
) -> subprocess.Popen[str]:  # fmt: skip
    """The program, running; its variables are `env` over a clean environment. `group`: it has a
    process group of its own."""
    ours = ("SGLANG_", "TPC_", "PYTHONPATH")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return subprocess.Popen(
        [sys.executable, "-c", begin + textwrap.dedent(code)],
        env={**clean, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", **env},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder,
        start_new_session=group,
    )  # fmt: skip


def run(folder: Path, code: str, begin: str = BEGIN, **env: str) -> tuple[int, str, str]:
    """Exit status, output and errors of the program."""
    with start(folder, code, begin, **env) as process:
        out, err = process.communicate(timeout=50)
    return process.returncode, out, err
