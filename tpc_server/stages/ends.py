"""How groups end: answers, errors, probes, clients that are gone. Owner: the detok core.

`detok.py` beside this opens them, `steps.py` renders their rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import frame, request
from ..frame import END_CLOSE, END_KEEP  # a global costs half of a module's
from ..fsm import ILLEGAL, IllegalTransition
from ..render import http
from ..request import N_EVENTS
from . import stream as records
from .steps import StepLoop
from .stream import Group, Stream

if TYPE_CHECKING:
    from ..counters import Counters


class GroupEnds(StepLoop):
    """The groups of one core, as far as their ends are concerned."""

    def __init__(self, setup: Any, counters: Counters) -> None:
        super().__init__(setup, counters)
        self.groups: dict[int, Group] = {}
        self.ended: Any = None  # counts groups that are over, where the scheduler asks for it
        self.dying = False
        self.probes: list[Group] = []  # health probes and control requests with a deadline
        self.ready_hook: Any = None  # called once the warm-up answer is in
        self.health_hook: Any = lambda well: None  # what a health probe found
        self._edges = request.MACHINE.compile()

    def step(self, state: int, event: int) -> int:
        """Next state of a request; IllegalTransition names both."""
        after = self._edges[state * N_EVENTS + event]
        if after == ILLEGAL:
            raise IllegalTransition(request.MACHINE, state, event)
        return after

    def finished(self, stream: Stream) -> None:
        """A stream has shown everything (or stored its result): end the group with the last."""
        group = stream.group
        group.remaining -= 1
        if group.remaining:
            return
        self.counters.answers += 1
        if group.api == records.WARMUP:
            self.probes.remove(group)
            self.ready_hook(True)
            self._close(group)
        elif group.api == records.HEALTH:
            self._healthy(group)
        elif group.is_stream:
            ending = group.shape.ending(group)
            if ending:
                self.write_stream(group, ending, self.now_ns)
            self.end_stream(group)
        else:
            self.reply(group, 200, group.shape.body(group), http.JSON)

    def end_stream(self, group: Group) -> None:
        """Terminator of an event stream."""
        data = group.shape.terminator
        if data:
            data = http.chunk(data, group.chunked)
        if group.chunked:
            data += http.LAST_CHUNK
        if not group.head_sent:
            data = self.head_of(group) + data
        group.writer.write(data)
        close = group.close or not group.chunked
        group.writer.finish(frame.END_CLOSE if close else frame.END_KEEP)
        self._close(group)

    def fail_group(self, group: Group, status: int, message: str, stream: Stream | None) -> None:
        """One error for the whole group; its other streams are aborted in the scheduler."""
        self.counters.errors += 1
        for live in group.streams:
            if live.wire_rid in self.streams:
                if live is not stream:
                    live.tok_port.send((frame.T_ABORT, live.wire_rid))
                self._forget_stream(live, request.FAIL)
        if group.api == records.WARMUP:
            self.probes.remove(group)
            if not self.dying:  # a core that is rebuilt warms up again
                self.ready_hook(False)
            self._close(group)
        elif group.head_sent:
            index = stream.index if stream is not None and group.is_batch else None
            self.write_stream(group, group.shape.error_frame(message, status, index), self.now_ns)
            self.end_stream(group)
        else:
            self.reply(group, status, group.shape.error_body(message, status), http.JSON)

    def drop_group(self, group: Group) -> None:
        """The client is gone: abort every child, answer nobody."""
        self._abort_streams(group)
        self._close(group)

    def fail_all(self, message: str) -> None:
        """Shutdown or a dying core: end every group with an error."""
        self.dying = True
        for group in list(self.groups.values()):
            self.fail_group(group, 503, message, None)

    def _abort_streams(self, group: Group) -> None:
        for live in group.streams:
            if live.wire_rid in self.streams:
                if group.api != records.CONTROL:
                    if group.api != records.HEALTH:  # no client's doing: its answer came early
                        self.counters.aborts += 1
                        if self.recorder is not None:
                            self.recorder.aborted()
                    live.tok_port.send((frame.T_ABORT, live.wire_rid))
                else:  # the scheduler holds no state of those
                    live.tok_port.send((frame.T_FORGET, live.wire_rid))
                self._forget_stream(live, request.ABORT)

    def _forget_stream(self, stream: Stream, event: int) -> None:
        stream.state = self.step(stream.state, event)
        self.leave(stream)

    def reply(self, group: Group, status: int, body: bytes, content_type: bytes) -> None:
        """The whole answer of a group, which ends with it."""
        if self.http_meter is not None:
            self.http_meter.answering(group.route, status)
        group.writer.answer(
            http.answer(
                status, body, content_type, group.close, group.head_only, group.extra, self.ok
            ),
            END_CLOSE if group.close else END_KEEP,
        )
        self._close(group)

    def _close(self, group: Group) -> None:
        group.done = True
        for stream in group.streams:  # break the cycles: no collector runs while serving
            if stream.logprobs is not None:
                stream.logprobs = None
        group.streams = []
        if group.writer.waiting:
            group.writer.waiting.clear()
        if self.groups.get(group.key) is group:
            del self.groups[group.key]
            if self.ended is not None:
                self.ended.add(1)  # no row of it is wanted any more
        if self.probes and group in self.probes:
            self.probes.remove(group)

    def _healthy(self, group: Group) -> None:
        self.health_hook(True)
        if group.about:
            group.extra += group.about
        self.reply(group, 200, b"", http.TEXT)

    def _probe_failed(self, group: Group) -> None:
        self.probes.remove(group)
        self._abort_streams(group)
        if group.api == records.WARMUP:
            self.ready_hook(False)
            self._close(group)
        elif group.api == records.CONTROL:
            self.reply(group, *self.setup.render_control(group.about, None))
        else:
            self.health_hook(False)
            self.reply(group, 503, b"", http.TEXT)
