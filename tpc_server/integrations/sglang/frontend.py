"""What SGLang's scheduler has in the place of its own server. Owner: the scheduler's thread.

A class derived from SGLang's `RustServer`: all of its packing and placing stays, only the module
that holds `Server` and its argument types is ours.
"""

from __future__ import annotations

import logging
import multiprocessing
from types import ModuleType
from typing import Any

from . import drain, refusals, settings
from .problem import Problem

logger = logging.getLogger("tpc_server")


def frontend_class(base: type[Any]) -> type[Any]:
    """`base` (SGLang's, or what another plugin made of it) with our `Server` under it."""

    class TpcServer(base):  # type: ignore[misc]
        """SGLang's wrapper around `tpc_server.Server`."""

        @classmethod
        def _load_extension(cls) -> ModuleType:
            import tpc_server

            return tpc_server

        @classmethod
        def _server_kwargs(cls, scheduler: Any) -> dict[str, Any]:
            more: dict[str, Any] = dict(super()._server_kwargs(scheduler))
            more["options"] = settings.options(arguments(scheduler))
            count = settings.frontends()
            if count != 1:
                more["frontends"] = count
            return more

        @classmethod
        def launch(cls, scheduler: Any) -> Any:
            try:
                refusals.by_arguments(arguments(scheduler))
                refusals.by_model(scheduler.model_config)
                settings.check_together()
                seconds = settings.drain_seconds()
                instance = super().launch(scheduler)
            except Exception as error:
                drain.fail(_one_line(error))
            drain.stand_by(instance.server, seconds)
            logger.info("SGLANG_FRONTEND=tpc: tpc_server listens on port %d", instance.http_port)
            return instance

    return TpcServer


def get_class(original: Any, scheduler: Any) -> type[Any]:
    """Hook around `Scheduler.get_rust_server_class`."""
    return frontend_class(original(scheduler))


def arguments(scheduler: Any) -> Any:
    """The scheduler's launch arguments as SGLang resolved them."""
    from sglang.srt.arg_groups.overrides import resolving_view

    return resolving_view(scheduler.server_args)


def refuse(result: Any, server_args: Any) -> None:
    """Hook after `ServerArgs.resolve_once`: refuses before a model is loaded. It is called in every
    process, and again whenever somebody makes sure."""
    from sglang.srt.arg_groups.overrides import resolving_view

    try:
        refusals.by_arguments(resolving_view(server_args))
        settings.options(resolving_view(server_args))
        _refuse_model(server_args)
    except Problem as error:
        raise SystemExit(f"tpc-server: error: {error}") from None
    if not _told and multiprocessing.parent_process() is None:
        _told.append(True)
        useless = refusals.without_effect(server_args)
        if useless:
            logger.warning("SGLANG_FRONTEND=tpc: without effect here: %s", ", ".join(useless))


_told: list[bool] = []


def _refuse_model(server_args: Any) -> None:
    """By the model's configuration, which SGLang has usually read by now; else `launch` does it.
    What it has read before all arguments were known is read again, as a scheduler will."""
    known = getattr(server_args, "_model_config", None)
    if known is None:
        return
    try:
        refusals.by_model(known)
    except Problem:
        refusals.by_model(type(known).from_server_args(server_args))


def _one_line(error: BaseException) -> str:
    """What went wrong: in its own words where they are meant for people."""
    text = str(error).strip() or repr(error)
    ours = type(error).__module__.startswith("tpc_server")
    return text if ours else f"{type(error).__name__}: {text}"
