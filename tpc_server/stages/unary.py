"""The usual end of a generation that is not streamed, in one pass. Owner: the detok core.

What `rows.py` does in steps for any row: a plain item of `/generate` or a plain chat completion,
whose tokens are whole pieces and with nothing asked for beside them, is rendered, answered and
forgotten here. What is not so takes `slow_row`.
"""

from __future__ import annotations

from typing import Any

from .. import request
from ..boundary.batch_header import Batch
from ..render import http, native
from .rows import StreamRows
from .stream import DONE, FRAGMENTS, STREAM, Group, Stream


class UnaryRows(StreamRows):
    """Plain items: `prepare` has given their hot lists the pieces of the tokens."""

    def reply(self, group: Group, status: int, body: bytes, content_type: bytes) -> None:
        """The whole answer of a group."""
        raise NotImplementedError

    def end_unary(self, hot: list[Any], batch: Batch, row: int, ids: list[int]) -> bool:
        """The last row of a plain item; False, and nothing done, where it is no usual one."""
        stream: Stream = hot[STREAM]
        finish: Any = batch.finish_reasons[row]
        if finish is None:
            return False
        matched = finish.get("matched")
        if (
            type(matched) is str
            or finish.get("type") == "abort"
            or batch.weight_versions is not None
            or not stream.has_context
        ):
            return False
        if stream.out_ids:
            ids = stream.out_ids + ids
        text = self._pieces(hot[FRAGMENTS], ids[:-1] if type(matched) is int else ids)
        if text is None:
            return False
        if stream.meter is not None:
            self.recorder.ended(stream, batch, row, self.now_ns)
        group = stream.group
        completion = hot[DONE] + batch.tok_lens[row]
        if group.shape is self.native:
            body = native.plain_result(
                text, ids, stream.rid_json, finish, batch.prompt_tokens[row],
                self.native.weight_version, batch.cached_tokens[row], batch.reasoning_tokens[row],
                (self.now_ns - group.created_ns) / 1e9, completion,
            )  # fmt: skip
        else:
            stream.finish = finish
            body = group.shape.plain_body(
                stream, text, batch.prompt_tokens[row], completion, batch.reasoning_tokens[row],
                batch.cached_tokens[row],
            )  # fmt: skip
        stream.state = self.step(stream.state, request.FINISH)
        self.leave(stream)
        group.remaining = 0
        self.counters.answers += 1
        self.reply(group, 200, body, http.JSON)
        return True

    def _pieces(self, fragments: list[bytes | None], ids: list[int]) -> bytes | None:
        """The text of ids that are all whole pieces; None where one is not."""
        if not ids:
            return b""
        if min(ids) < 0 or max(ids) >= len(fragments) - 1:
            return None
        pieces: list[Any] = list(map(fragments.__getitem__, ids))
        if None in pieces:
            escaped = self._shown
            assert escaped is not None
            pieces = list(map(escaped.fill, ids))
            if None in pieces:
                return None
        return b"".join(pieces)
