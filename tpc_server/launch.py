"""The server as a program: engine, cores, banner, signals, drain. Owner: the main thread.

The main thread runs no stage. The engine is a scheduler on a thread of its own that drives the
same `Server` boundary as any other scheduler would.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import sys
import threading
import time
from typing import Any, Final

from . import access, flag_checks, runtime
from .affinity import pin, topology
from .affinity.cores_arg import refuse_missing_cpus
from .affinity.plan import PlanSettings, parse_cores, plan
from .banner import banner
from .boundary.server_args import ModelConfig, ServerArgs
from .config import Options
from .doorman import Doorman
from .environment import env_flag
from .link.control import Operators
from .listen import Bound, ListenError, bind
from .metrics.flags import metrics_config
from .signals import Signals, leave
from .tell import tell

_POLL_MS: Final = 500
_SETTLE_S: Final = 0.3
_ENGINE_JOIN_S: Final = 5.0
_WITHOUT_GIL: Final = "`tpc-server setup` prepares one without, which is taken from then on"


class Problem(Exception):
    """Something the user has to put right; printed without a stack, exit status 1."""


def run(given: Any) -> int:
    """Serve until a signal; the exit status."""
    try:
        return _run(given)
    except Problem as problem:
        tell(f"tpc-server: error: {problem}")
        return 1
    except KeyboardInterrupt as stop:  # while loading; its argument is the signal
        return 128 + (stop.args[0] if stop.args else signal.SIGINT)
    except (OSError, ImportError) as error:
        if not _out_of_descriptors(error):
            raise
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        tell(
            f"tpc-server: error: out of file descriptors while starting (limit {most}, see"
            " `ulimit -n`)"
        )
        return 1


def _out_of_descriptors(error: OSError | ImportError) -> bool:
    """Whether that is what an error comes from. Modules are not found then either: the import
    system takes a folder that it cannot open for an empty one."""
    if isinstance(error, ImportError):
        try:
            os.close(os.dup(2))
        except OSError as now:
            error = now
    return isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)


def _run(given: Any) -> int:
    signals = Signals()
    _read_access(given)
    launch_mask = sorted(os.sched_getaffinity(0))
    from .engines import registry

    facts = topology.read()
    try:
        wanted = parse_cores(given.cores) if given.cores else None
        if wanted is not None and facts.pinnable and not given.unpinned:
            refuse_missing_cpus(wanted, facts.allowed)
        core_plan = plan(
            facts,
            PlanSettings(
                cores=wanted,
                engine_cpus=registry.engine_cpus(given.engine, facts),
                unpinned=given.unpinned,
            ),
        )
    except ValueError as error:
        raise Problem(str(error)) from None
    _metrics(given, "")  # bad flags are told before the model is loaded
    try:
        flag_checks.check(given)
    except ValueError as error:
        raise Problem(str(error)) from None
    # Before the slow part: a port in use is found now, and who asks is told "not yet".
    try:
        bound = bind(
            given.host, given.port, given.uds, len(core_plan.stage_cores("ingress")),
            given.backlog,
        )  # fmt: skip
    except ListenError as error:
        raise Problem(str(error)) from None
    try:
        engine = _load(given, core_plan, bound, signals)
        server = _start_server(given, core_plan, engine, bound)
    except BaseException:
        bound.close()
        raise
    try:
        return _serve(given, server, engine, core_plan, signals, launch_mask)
    finally:
        server.shutdown()


def _load(given: Any, core_plan: Any, bound: Bound, signals: Signals) -> Any:
    """Imports and the engine with its model, while the door answers 503."""
    from .engines import registry

    registry.before_imports(given, core_plan)
    doorman = Doorman([sock for group in bound.groups for sock in group])
    try:
        _guard_gil(given)

        def progress(what: str, fraction: float) -> None:
            signals.check()
            _progress(what, fraction)

        signals.check()
        engine = registry.create(given, core_plan, progress)
        signals.check()
        return engine
    except registry.EngineProblem as error:
        raise Problem(str(error)) from None
    finally:
        doorman.leave()


def _guard_gil(given: Any) -> None:
    culprit = runtime.import_all(*(("prometheus_client",) if given.enable_metrics else ()))
    if runtime.gil_enabled():
        reason = (
            f"importing {culprit or 'something'} switched it on"
            if runtime.free_threaded_build()
            else "this is a GIL build"
        )
        if not runtime.free_threaded_build() and not os.environ.get("TPC_PYTHON"):
            reason += f"; {_WITHOUT_GIL}"
        if given.require_free_threading:
            raise Problem(f"the GIL is on: {reason}")
        tell(
            f"tpc-server: warning: the GIL is on ({reason}): threads take turns, expect one "
            "core's speed"
        )


def _metrics(given: Any, model_name: str) -> Any:
    try:
        return metrics_config(given, model_name)
    except ValueError as error:
        raise Problem(str(error)) from None


def _read_access(given: Any) -> None:
    """Keys and origins into `given`, before anything slow begins."""
    try:
        given.api_keys = access.gather(
            "api-key", given.api_key or (), given.api_key_file or (), access.KEY_NAMES
        )
        given.admin_api_keys = access.gather(
            "admin-api-key", given.admin_api_key or (), given.admin_api_key_file or (),
            access.ADMIN_KEY_NAMES,
        )  # fmt: skip
        given.cors_origins = access.origins(given.cors_allow_origin)
    except access.AccessProblem as error:
        raise Problem(str(error)) from None


def _start_server(given: Any, core_plan: Any, engine: Any, bound: Bound) -> Any:
    from .server import Server, ServerError
    from .text.chat_prompt import ChatTemplateError
    from .text.load import TokenizerError

    try:
        args = ServerArgs(
            model_path=engine.model_path,
            served_model_name=given.served_model_name or engine.model_name,
            tokenizer_path=given.tokenizer_path or engine.tokenizer_path,
            revision=given.revision,
            host=given.host,
            port=given.port,
            log_level=given.log_level,
            weight_version=given.weight_version,
            chat_template=given.chat_template,
            default_chat_template_kwargs=given.default_chat_template_kwargs,
            tool_call_parser=given.tool_call_parser,
            reasoning_parser=given.reasoning_parser,
            skip_tokenizer_init=given.skip_tokenizer_init,
            skip_server_warmup=given.skip_server_warmup,
            incremental_streaming_output=given.incremental_streaming_output,
            stream_response_default_include_usage=given.stream_response_default_include_usage,
            allow_auto_truncate=given.allow_auto_truncate,
            enable_return_hidden_states=given.enable_return_hidden_states,
            preferred_sampling_params=given.preferred_sampling_params,
            default_max_new_tokens=given.default_max_new_tokens,
            max_total_num_tokens=engine.max_total_tokens,
            metrics=_metrics(given, given.served_model_name or engine.model_name),
            model_config=ModelConfig(
                context_len=engine.context_len,
                vocab_size=engine.vocab_size,
                model_type=engine.model_type,
            ),
        )
        options = Options(
            uds=given.uds,
            api_keys=given.api_keys,
            admin_api_keys=given.admin_api_keys,
            cors_origins=given.cors_origins,
            request_id_headers=given.enable_request_id_headers,
            header_overrides=given.enable_request_header_overrides
            or env_flag("SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES", False),
            cache_report=given.enable_cache_report,
            max_logprobs=given.max_logprobs,
            max_logprob_entries=given.max_logprob_entries,
            plan=core_plan,
            max_head_bytes=given.max_head_size,
            max_body_bytes=given.max_body_size,
            max_connections=given.max_connections,
            header_timeout_s=given.header_timeout,
            body_timeout_s=given.body_timeout,
            idle_timeout_s=given.keep_alive_timeout,
            drain_s=given.drain_timeout,
            write_timeout_s=given.write_timeout,
            stream_buffer_bytes=given.stream_buffer,
            sse_keepalive_s=given.sse_keep_alive,
            spin_us=given.spin_us,
            socket_buffer_bytes=given.socket_buffer,
            backlog=given.backlog,
            root_path=given.fastapi_root_path,
            grammars=engine.grammars,
            log_format=given.log_format,
            access_log=given.access_log,
        )
        return Server(args, options=options, bound=bound)
    except (TypeError, TokenizerError, ChatTemplateError, ServerError) as error:
        raise Problem(str(error)) from None


def _serve(
    given: Any, server: Any, engine: Any, core_plan: Any, signals: Signals, mask: list[int]
) -> int:
    stopping = threading.Event()
    outcome: list[BaseException] = []
    thread = threading.Thread(
        target=_engine_thread,
        args=(engine, server, stopping, core_plan.scheduler_cpus or tuple(mask), outcome),
        name="tpc-engine",
        daemon=True,
    )
    thread.start()
    signals.wake = server.setup.wake_main
    operators = Operators(server)
    shown = False
    status = 0
    while not signals.count:
        operators.wait(_POLL_MS)
        if server.ready and not shown:
            shown = True
            print(banner(given, server, engine, time.monotonic() - signals.started), flush=True)
        if server.failed or outcome:
            status = 1
            break
    if outcome:
        tell(f"tpc-server: error: the engine ended: {outcome[0]!r}")
    if not status:
        _drain(given, server, signals, operators)
    signals.ending = True
    operators.close()
    server.shutdown()
    stopping.set()
    if signals.count < 2:
        thread.join(_ENGINE_JOIN_S)
    if signals.count >= 2:
        leave(status)
    return status


def _engine_thread(
    engine: Any, server: Any, stopping: threading.Event, cpus: tuple[int, ...], outcome: list[Any]
) -> None:
    pin.name_thread("tpc-engine")
    if cpus:
        pin.pin_current_thread(cpus)
    try:
        engine.run(server, stopping)
    except BaseException as error:
        outcome.append(error)
        server.setup.log("error", "engine died", stack=_format(error))
    server.setup.wake_main()


def _format(error: BaseException) -> str:
    import traceback

    return "".join(traceback.format_exception(error))


def _drain(given: Any, server: Any, signals: Signals, operators: Operators) -> None:
    """Finish what runs, within the limit; a second signal ends it."""
    log = server.setup.log
    log("info", "stopping", signal=signals.name, limit_s=given.drain_timeout)
    server.start_drain()
    deadline = time.monotonic() + given.drain_timeout
    begun = time.monotonic()
    left, last = server.inflight(), -1
    while time.monotonic() < deadline and signals.count < 2:
        left = server.inflight()
        # Counters are published a little late: zero counts once it has had time to be true.
        if not left and time.monotonic() - begun > _SETTLE_S:
            break
        if left and left != last:
            seconds = max(0.0, deadline - time.monotonic())
            log("info", f"draining: {_requests(left)} left, up to {seconds:.0f} s")
            last = left
        operators.wait(50)
    if left:
        why = "a second signal" if signals.count > 1 else "--drain-timeout is over"
        log("warning", f"{why}: {_requests(left)} cut")


def _requests(number: int) -> str:
    return "1 request" if number == 1 else f"{number} requests"


def _progress(what: str, fraction: float) -> None:
    """A progress line on a terminal, a few plain lines elsewhere."""
    _PROGRESS.show(what, fraction)


class _Progress:
    def __init__(self) -> None:
        self._last = ("", -1.0)
        self._tty = sys.stderr.isatty()

    def show(self, what: str, fraction: float) -> None:
        if self._tty:
            filled = int(30 * fraction)
            bar = "#" * filled + "." * (30 - filled)
            end = "\n" if fraction >= 1 else ""
            print(f"\r{what:<24} [{bar}] {100 * fraction:3.0f} %", end=end, file=sys.stderr)
        elif what != self._last[0] or fraction >= 1 > self._last[1]:
            done = ": done" if fraction >= 1 else " ..."
            tell(f"{what}{done}")
        self._last = (what, fraction)


_PROGRESS: Final = _Progress()
