"""The program of a frontend process: `--sidecar FD`, or `--attach SOCKET`. Owner: its main thread.

It waits for three things: words of the scheduler's end of the link, the end of that end, and the
cores' wake-ups. When the scheduler is gone, every stream ends with an error, and so does the
process (a sidecar), or it waits for the next scheduler (attached).
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import math
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from ..affinity import pin
from ..log import LogWriter
from ..tell import tell
from . import plain, protocol
from .attached import describe
from .messages import Channel, LinkClosed, text_of

_CONFIG_S: Final = 24 * 3600.0  # while the scheduler's process is there it will say something
_SETTLE_S: Final = 0.3
_PR_SET_PDEATHSIG: Final = 1
SCHEDULER_GONE: Final = "the scheduler has ended"
FAILED: Final = "failed"
GONE: Final = "gone"
OVER: Final = "over"


def main(argv: list[str]) -> int:
    """Exit status: 0 at the end asked for, 1 when it could not serve."""
    parser = argparse.ArgumentParser(prog="tpc-server --sidecar", add_help=False)
    parser.add_argument("--sidecar", type=int, required=True)
    given = parser.parse_args(argv)
    channel = Channel(socket.socket(fileno=given.sidecar))
    _follow_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the scheduler decides
    channel.watch()
    channel.send({"hello": protocol.hello()})
    try:
        message = channel.wait(_CONFIG_S)
    except (TimeoutError, LinkClosed):
        return 1
    if refused := text_of(message, "refused"):
        tell(f"tpc-server: error: this frontend process is refused: {refused}")
        return 1
    fds = channel.take_fds()
    registry_fd = fds.pop() if message.get("registry") else -1
    metrics = metrics_of(message, fds)
    listeners = sockets_of(message["listeners"], fds)
    why = serve(channel, message["config"], listeners, metrics, registry_fd)
    return 1 if why == FAILED else 0


def _follow_parent() -> None:
    """A second net: to end with the process that started us.

    The signal comes when the thread that forked has ended, and then the one that inherited us:
    only the parent's number says whether the process is gone.
    """
    parent = os.getppid()

    def look(number: int, frame: Any) -> None:
        if os.getppid() != parent:
            signal.raise_signal(signal.SIGTERM)

    signal.signal(signal.SIGUSR1, look)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGUSR1, 0, 0, 0)


def sockets_of(groups: list[int], fds: list[int]) -> list[list[socket.socket]]:
    """Inherited listening sockets, by ingress core."""
    made = [socket.socket(fileno=fd) for fd in fds]
    for sock in made:
        sock.setblocking(False)
    out = []
    for count in groups:
        out.append(made[:count])
        made = made[count:]
    return out


def metrics_of(message: dict[str, Any], fds: list[int]) -> list[int]:
    """What `make_mesh` takes of the metrics of all frontends; its descriptor is the last one."""
    metrics: list[int] = message.get("metrics") or []
    return [fds.pop(), *metrics] if metrics else []


def serve(
    channel: Channel, config: dict[str, Any], listeners: list[list[socket.socket]],
    metrics: list[int], registry_fd: int = -1, closing: Callable[[], None] | None = None,
) -> str:  # fmt: skip
    """Serve one scheduler until it is gone or says so; FAILED, GONE or OVER (told to end).

    `metrics`: the region of all frontends' metrics, as `make_mesh` takes it; `registry_fd`: of a
    prefill server. `closing` is given by a program that somebody else started: an interrupt ends
    it, which otherwise is the scheduler's affair; the scheduler's end does not. It is called when
    the scheduler wants no more requests.
    """
    signals = _Signals()
    # A child that was restarted must not keep the mask of the thread that restarted it.
    mask = config.get("mask")
    if mask:
        pin.try_pin(mask)
    args = plain.args_from_plain(config["args"])
    options = plain.options_from_plain(config["options"])
    plan = plain.plan_from_plain(config["plan"])
    from ..runtime import import_all

    import_all()
    from ..frontend import Frontend, ServerError, load_texts, make_mesh

    log = LogWriter(args.log_level, options.log_format)
    try:
        texts = load_texts(args)
        to_scheduler, from_scheduler, between = config["caps"]
        link = make_mesh(args, plan, to_scheduler, from_scheduler, between, metrics)
    except Exception as error:
        channel.send({"refused": str(error)})
        if closing is not None:
            tell(f"tpc-server: error: {error}")
        return FAILED
    about, fds = describe(link)
    channel.send({"mesh": about}, fds)

    class Sidecar(Frontend):
        """A frontend whose scheduler is in another process."""

        mode = config["mode"]
        alone = config["alone"]

    ingress = plan.stage_cores("ingress")
    # From the first connection on; until then there is nothing to finish.
    signal.signal(signal.SIGTERM, signals.on_term)
    try:
        frontend = Sidecar(
            args, options, link, dict(zip(ingress, listeners, strict=True)), texts, log,
            registry_fd,
        )  # fmt: skip
    except (ServerError, OSError) as error:
        channel.send({"failed": str(error)})
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        return FAILED
    channel.send({"accepting": True})
    life = _Life(channel, frontend, closing, signals)
    if closing is not None:
        signal.signal(signal.SIGINT, signals.on_term)
    why = life.run()
    if closing is not None:  # who asks while the next scheduler is waited for is answered at once
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return why


class _Signals:
    """What signals asked for; they are acted upon from the loop, as a handler may come while the
    main thread holds a lock."""

    def __init__(self) -> None:
        self.hangups = 0
        self.asked = False  # to drain, once
        signal.signal(signal.SIGHUP, self._on_hangup)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGHUP,))  # of a child: see its start

    def _on_hangup(self, number: int, frame: Any) -> None:
        self.hangups += 1

    def on_term(self, number: int, frame: Any) -> None:
        """A signal that ends us."""
        self.asked = True


class _Life:
    """From the first connection to the last."""

    def __init__(
        self, channel: Channel, frontend: Any, closing: Callable[[], None] | None,
        signals: _Signals,
    ) -> None:  # fmt: skip
        self._channel = channel
        self._frontend = frontend
        self._closing = closing
        self._told_ready = False
        self._leaving = False
        self._leave_at = 0.0  # give up then
        self._since = 0.0
        self._message = ""
        self._wake = (-1, -1)
        self._signals = signals
        self._draining = False  # an end was asked for, by a signal or the scheduler

    def run(self) -> str:
        """Until the scheduler is gone, or says that it is over."""
        frontend = self._frontend
        wake_r, wake_w = self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
        signals = self._signals
        poll = select.poll()
        ends = self._channel.filenos()
        for fd in ends:
            poll.register(fd, select.POLLIN)
        poll.register(frontend.wake_fileno(), select.POLLIN)
        poll.register(wake_r, select.POLLIN)
        while True:
            if frontend.ready and not self._told_ready:
                self._told_ready = True
                self._channel.send({"ready": True})
            wait_ms = 100 if self._leaving else None
            if signals.hangups or (signals.asked and not self._draining):
                wait_ms = 0  # they came before there was something to wake
            for fd, _ in poll.poll(wait_ms):
                if fd == wake_r:
                    with contextlib.suppress(BlockingIOError):
                        os.read(wake_r, 64)
                elif fd in ends:
                    if not self._listen():
                        return self._end(SCHEDULER_GONE, GONE)
                else:
                    frontend.wait_event(0)
            if signals.asked and not self._draining:  # also where it was replaced
                self._channel.send({"draining": True})  # another one may take the place
                self._drain(frontend.options.drain_s, soft=False)
            if signals.hangups:
                signals.hangups = 0
                self._channel.send({"reload": True})
            if frontend.failed:
                self._channel.send({"failed": "a core could not go on, see the log"})
                return self._end("the frontend could not go on", FAILED)
            if self._message:
                return self._end(self._message, OVER)
            if self._leaving and self._drained():
                own = self._closing is None or signals.asked
                return self._end("the server is shutting down", OVER if own else GONE)

    def _listen(self) -> bool:
        """What the scheduler's end says; False when it is gone."""
        try:
            while (message := self._channel.poll()) is not None:
                if "retire" in message:
                    self._drain(float(message["retire"]) or math.inf, soft=True)
                if "drain" in message:
                    self._drain(float(message["drain"]), soft=False)
                    if self._closing is not None:
                        with contextlib.suppress(OSError):  # no descriptors: who asks waits
                            self._closing()
                if message.get("stop"):
                    self._message = "the server is shutting down"
        except LinkClosed:
            return False
        return True

    def _drain(self, seconds: float, soft: bool) -> None:
        if soft and self._draining:  # it was told to go when a signal had told it to end
            return
        self._since = time.monotonic()
        self._leaving = True
        self._leave_at = self._since + seconds
        if soft:
            self._frontend.start_retiring()
        else:
            self._draining = True
            self._frontend.start_drain()

    def _drained(self) -> bool:
        now = time.monotonic()
        if now > self._leave_at:
            return True
        counters = self._frontend.counters()
        busy = sum(c["inflight"] for c in counters) + sum(c["connections"] for c in counters)
        return not busy and now - self._since > _SETTLE_S

    def _end(self, message: str, why: str) -> str:
        self._frontend.shutdown(message=message)
        self._channel.close()
        signal.set_wakeup_fd(-1)
        for fd in self._wake:
            os.close(fd)
        return OVER if self._signals.asked and why == GONE else why


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
