"""Puts our frontend into SGLang, or ends with why not. Owner: SGLang's processes, at start.

The order matters: SGLANG_RUST_SERVER, which makes SGLang start the frontend in its scheduler, is
set last. Before that nothing has changed; after it a hook that did not take ends the process.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import sys
import threading
from collections.abc import MutableMapping
from typing import Any, Final

from ... import modes
from . import contract, drain, frontend, settings
from .problem import Problem

CLASS_HOOK: Final = "sglang.srt.managers.scheduler.Scheduler.get_rust_server_class"
ARGUMENTS_HOOK: Final = "sglang.srt.server_args.ServerArgs.resolve_once"
FLAG: Final = "SGLANG_RUST_SERVER"


def hook_in(environ: MutableMapping[str, str] = os.environ) -> None:
    """Everything the plugin does. Raises Problem."""
    _refuse_engine()
    contract.check()
    if multiprocessing.parent_process() is None:
        _prepare_main()
    else:
        drain.follow()
    _register()
    _guard()
    environ[FLAG] = "1"


def _prepare_main() -> None:
    """What is asked once, before a model is loaded: settings, interpreter, the end."""
    from ...bootstrap.prepared import prepared_python

    settings.options(None)
    settings.check_together()
    seconds = settings.drain_seconds()
    if needs_interpreter() and prepared_python() is None:
        raise Problem(
            "no free-threaded interpreter is prepared, and none is made while SGLang starts: run"
            " `tpc-server setup`"
        )
    if threading.current_thread() is threading.main_thread():
        drain.MainProcess(seconds).install()


def needs_interpreter() -> bool:
    """Whether this Python has a GIL: the cores then run in a process of another one."""
    return modes.has_gil()


def _register() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(CLASS_HOOK, frontend.get_class, HookType.AROUND)
    HookRegistry.register(ARGUMENTS_HOOK, frontend.refuse, HookType.AFTER)


def _guard() -> None:
    """SGLang only logs a hook that cannot be applied, and would start its own server then."""
    from sglang.srt.rust_server.server import RustServer

    launch: Any = RustServer.__dict__["launch"].__func__

    @functools.wraps(launch)
    def guarded(cls: type[Any], scheduler: Any) -> Any:
        if cls is RustServer:
            drain.fail("the hook on get_rust_server_class did not take: another plugin removed it")
        return launch(cls, scheduler)

    RustServer.launch = classmethod(guarded)


def _refuse_engine() -> None:
    """SGLang runs plugins from the constructor of its offline engine, too."""
    frame: Any = sys._getframe()
    while frame is not None:
        module = frame.f_globals.get("__name__")
        if frame.f_code.co_name == "__init__" and module == "sglang.srt.entrypoints.engine":
            raise Problem(
                "SGLANG_FRONTEND=tpc: sgl.Engine has no frontend, only `sglang serve` has; unset it"
            )
        frame = frame.f_back
