"""Detok: scheduler frames in, rendered text out. Owner: the core that runs the stage.

`steps.py` beside this holds the loop over one step's rows, `ends.py` how groups end; here is what
happens around them: opening groups, aborts, the scheduler's other records.
"""

from __future__ import annotations

import time
from collections import deque
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from .. import frame, request
from ..contract.errors import anthropic_error_body, openai_error_body
from ..frame import D_ENCODED, D_OPEN  # a global costs half of a module's
from ..render import http, native
from ..render.anthropic import MessagesShape
from ..render.chat import ChatShape
from ..render.completion import CompletionShape
from ..render.openai import Spec
from ..render.shape import TellsErrors
from . import stream as records
from .base import Port
from .ends import GroupEnds
from .stream import Group, Stream
from .writers import RemoteWriter

if TYPE_CHECKING:
    from ..counters import Counters


class DetokStage(GroupEnds):
    """Live streams whose detokenization and rendering is on this core."""

    name = "detok"

    def __init__(self, setup: Any, counters: Counters, writer_of: Any) -> None:
        super().__init__(setup, counters)
        self.inbox: deque[frame.Message] = deque()
        self.records: deque[tuple[int, bytes, bytes]] = deque()  # from the scheduler's ring
        self.held_up: set[RemoteWriter] = set()  # writers whose core lags behind
        self.refusal = ""  # once the server stops: what every new request is told
        self._ingress: dict[int, Port] = {}
        self._writer_of = writer_of
        self._tok_ports: dict[int, Port] = {}
        self._accepted = self.step(request.RECEIVED, request.ACCEPT)
        self._shapes: dict[int, Any] = {
            records.CHAT: ChatShape,
            records.MESSAGES: MessagesShape,
            records.COMPLETION: CompletionShape,
        }
        # Of what is answered without the scheduler's frames, by the first word of what it is about.
        flat = TellsErrors(openai_error_body)
        self._told: dict[str, Any] = {
            records.TEXTS: flat, records.LOADS: flat,
            records.COUNT: TellsErrors(anthropic_error_body),
        }  # fmt: skip

    def connect(self, tok_ports: dict[int, Port], ingress: dict[int, Port]) -> None:
        """Ports to the tokenize and the ingress stages, by core."""
        self._tok_ports = tok_ports
        self._ingress = ingress

    # -- stage protocol --------------------------------------------------------------

    def poll(self, budget: int) -> int:
        """Messages first: a stream is always opened before its frames are looked at."""
        if self.held_up:
            self._go_on()
        inbox = self.inbox
        done = 0
        while inbox and done < budget:
            self.on_message(inbox.popleft())
            done += 1
        if inbox:
            return done
        from_scheduler = self.records
        while from_scheduler:
            kind, key, payload = from_scheduler.popleft()
            self.on_record(kind, key, payload)
            done += 1
        return done

    def pure_poll(self) -> bool:
        """Whether messages or records wait, or streams that may go on."""
        if self.inbox or self.records:
            return True
        for writer in self.held_up:
            return not writer.port.backlog  # of this core: the same for all
        return False

    def on_tick(self, now_ns: int) -> None:
        """Deadlines of probes; comments for quiet streams."""
        second = int(time.time())
        if second != self._second:
            self._second = second
            self.ok = http.dated(second)
        for group in list(self.probes):
            if group.deadline_ns and now_ns > group.deadline_ns:
                self._probe_failed(group)
        self._count_states()
        interval = self.setup.sse_keepalive_ns
        if interval:
            for group in self.groups.values():
                if group.is_stream:
                    self._keep_alive(group, now_ns, interval)

    def _count_states(self) -> None:
        streams = self.streams.values()
        states = [stream.state for stream in streams if stream.group.api <= records.COMPLETION]
        counters = self.counters
        counters.tokenizing = states.count(request.TOKENIZING)
        counters.queued = states.count(request.QUEUED)
        counters.decoding = states.count(request.DECODING)

    def _keep_alive(self, group: Group, now_ns: int, interval: int) -> None:
        """A comment on a stream that has been quiet; the step loop keeps no time per row."""
        done = sum([stream.hot[records.DONE] for stream in group.streams])
        if done != group.last_done:
            group.last_done = done
            group.last_ns = now_ns
        elif now_ns - group.last_ns > interval and not group.writer.blocked:
            self.write_stream(group, b": keep-alive\n\n", now_ns)

    def _go_on(self) -> None:
        """Streams whose messages had to wait for another core: once there are none, go on."""
        for writer in list(self.held_up):
            if writer.port.backlog:
                return
            self.held_up.discard(writer)
            writer.blocked = writer.full
            if writer.full:
                continue  # its socket is as well: D_FLOW will tell
            waiting = writer.waiting
            writer.waiting = []
            for stream in waiting:
                self.resume(stream)

    def poll_messages(self) -> None:
        """All messages that wait, whatever their number."""
        while self.inbox:
            self.on_message(self.inbox.popleft())

    def ingress_lost(self, core: int) -> None:
        """An ingress core closed all its connections."""
        for group in [g for g in self.groups.values() if g.key >> 40 == core]:
            self.drop_group(group)

    def resume(self, stream: Stream) -> None:
        """Room again on a stream's connection: show what piled up."""
        stream.waiting = False
        if stream.group.done:
            return
        if stream.writer.blocked:
            self.wait_for_room(stream)
        else:
            self.show(stream)

    # -- messages --------------------------------------------------------------------

    def on_message(self, message: frame.Message) -> None:
        """One message; of a stage of this core perhaps at once (see `base.DirectPort`)."""
        kind = message[0]
        if kind == D_OPEN:
            self._open(message)
        elif kind == D_ENCODED:
            self._encoded(message)
        elif kind == frame.D_FAIL:
            stream = self.streams.get(message[1])
            if stream is not None:
                if message[2] == 0:  # aborted before it was sent
                    self._aborted_early(stream, message[3])
                else:
                    self.fail_group(stream.group, message[2], message[3], stream)
        elif kind == frame.D_ABORT:
            self._abort(message[1])
        elif kind == frame.D_GONE:
            group = self.groups.get(message[1])
            if group is not None:
                self.drop_group(group)
        elif kind == frame.D_PROBE:
            group = self.groups.get(message[1])
            if group is not None:
                self._probe_peer(group)
        elif kind == frame.D_CHECK:
            if message[1] in self.groups:
                self._ingress[message[1] >> 40].send((frame.I_ALIVE, message[1]))
        elif kind == frame.D_RESULT:
            self._on_result(*message[1:])
        elif kind == frame.D_FLOW:
            group = self.groups.get(message[1])
            if group is not None:
                group.writer.blocked = group.writer.full = message[2]
                if message[2]:
                    for stream in group.streams:
                        stream.hot[records.MODE] = records.SLOW
                else:
                    waiting = group.writer.waiting
                    group.writer.waiting = []
                    for stream in waiting:
                        self.resume(stream)

    def _probe_peer(self, group: Group) -> None:
        """Write something harmless: the kernel of a peer that is gone answers with a reset."""
        if group.head_sent:
            self.write_stream(group, b":\n\n", self.now_ns)
        elif group.chunked:
            group.writer.write(http.CONTINUE)

    def _open(self, message: frame.Message) -> None:
        (
            _, key, api, is_stream, is_batch, chunked, close, head_only, extra, about,
            created_ns, deadline_ns, tok_core, items, meter,
        ) = message  # fmt: skip
        shape: Any = self.native
        made = self._shapes.get(api)
        if made is not None:
            shape = made(Spec(*about), self.native.weight_version, self.decode_prompt)
        elif api == records.CONTROL:
            shape = self._told.get(about.partition(" ")[0], shape)
        group = Group(
            key, self._writer_of(key), api, is_stream, is_batch, chunked, close, head_only,
            extra, about, created_ns, shape,
        )  # fmt: skip
        if meter is not None:
            group.route = meter[0]
        self.groups[key] = group
        if deadline_ns:
            group.deadline_ns = deadline_ns
            self.probes.append(group)
        port = self._tok_ports[tok_core]
        state = self._accepted
        if api == records.CONTROL:  # nothing to encode
            state = self.step(state, request.ENCODED)
        streams = group.streams
        for wire_rid, user_rid, plan, group_rid in items:
            stream = Stream(group, wire_rid, user_rid, plan, port, state)
            if streams:
                stream.index = len(streams)
            if group_rid is not None:
                stream.group_rid = group_rid
            if meter is not None and meter[1] is not None:
                structured = meter[2] is not None and meter[2][stream.index]
                stream.meter = self.recorder.open(
                    wire_rid, meter[1], is_stream, created_ns, structured
                )
            self.prepare(stream)
            streams.append(stream)
            self.enter(stream)
        group.remaining = len(streams)
        if self.refusal:
            self.fail_group(group, 503, self.refusal, None)

    def _encoded(self, message: frame.Message) -> None:
        _, wire_rid, n_prompt, prompt_ids, last_ids, tok_core = message
        stream = self.streams.get(wire_rid)
        if stream is None:
            # It ended before; its abort may have been sent before its job was there to be found.
            self._tok_ports[tok_core].send((frame.T_ABORT, wire_rid))
            return
        stream.state = self.step(stream.state, request.ENCODED)
        stream.prompt_tokens = n_prompt
        if self._needs_context or stream.group.is_stream:
            self.encoded(stream, last_ids)
        if prompt_ids is not None:
            stream.prompt_ids = prompt_ids

    def _abort(self, rids: list[str] | None) -> None:
        """A client's abort: exact rids, or batches' rids for all their children; None for all.

        One pass over the streams whatever the number of rids.
        """
        wanted = frozenset(rids or ())
        for stream in list(self.streams.values()):
            group = stream.group
            meant = rids is None or stream.user_rid in wanted or stream.group_rid in wanted
            if meant and group.api <= records.COMPLETION and not stream.aborting:
                stream.aborting = True
                self.counters.aborts += 1
                if self.recorder is not None:
                    self.recorder.aborted()
                stream.tok_port.send((frame.T_ABORT, stream.wire_rid))

    def on_abort(self, payload: bytes) -> None:
        """As a client's own abort."""
        self._abort(frame.decode(payload)[1])

    def _aborted_early(self, stream: Stream, message: str) -> None:
        self.now_ns = monotonic_ns()  # no record of the scheduler has told the time
        self.end_row(stream, {"type": "abort", "message": message}, [], None)

    # -- records of the scheduler ----------------------------------------------------

    def on_control(self, wire_rid: str, payload: bytes) -> None:
        """The scheduler's answer to a control request."""
        stream = self.streams.get(wire_rid)
        if stream is not None and stream.group.api == records.CONTROL:
            group = stream.group
            self._forget_stream(stream, request.FINISH)
            group.remaining = 0
            try:
                answer = self.setup.render_control(group.about, payload)
            except Exception as error:  # whatever the scheduler sent, its frames go on
                message = f"unreadable answer of the scheduler: {error}"
                answer = (500, native.error_body(message, 500), http.JSON)
            self.reply(group, *answer)

    def _on_result(self, wire_rid: str, status: int, body: bytes) -> None:
        """What a call of the tokenizer gave."""
        stream = self.streams.get(wire_rid)
        if stream is not None:
            group = stream.group
            self._forget_stream(stream, request.FINISH)
            group.remaining = 0
            self.counters.answers += 1
            self.reply(group, status, body, http.JSON)

    def on_error(self, wire_rid: str, message: str) -> None:
        """The scheduler could not read a request."""
        stream = self.streams.get(wire_rid)
        if stream is not None:
            self.fail_group(stream.group, 400, message, stream)

    def on_activity(self) -> None:
        """The scheduler is alive: every waiting health probe is answered."""
        if not self.probes:
            return
        for group in self.probes[:]:
            if group.api == records.HEALTH:
                self.probes.remove(group)
                self._abort_streams(group)
                self._healthy(group)
