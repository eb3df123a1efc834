"""JSON of SGLang's native `/generate` answers. Owner: stateless.

Standard library only: runs in a subinterpreter too. Everything here is rendered to bytes
once and then only joined; the step loop puts `completion_tokens` last, so that a frame is
head + text + ids + a middle that stays the same + a counter.
"""

from __future__ import annotations

import json
from types import NoneType
from typing import Any, Final

from ..text.escape import json_escape

Parts = list[bytes | bytearray]

DONE: Final = b"data: [DONE]\n\n"
TEXT_OPEN: Final = b'data: {"text":"'
IDS_OPEN: Final = b'","output_ids":['
META_OPEN: Final = b'],"meta_info":{'

# What `JSONEncoder.encode` makes anew at every call; its own object would be shared between cores.
_make_encoder: Any = getattr(json.encoder, "c_make_encoder", None)
_quote: Any = json.encoder.encode_basestring


def _refuse(value: Any) -> Any:
    raise TypeError(f"{type(value).__name__} is no JSON")


def _dump(value: Any) -> str:
    if _make_encoder is None:  # an interpreter without the C part
        separators = (",", ":")
        return json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=separators).encode(
            value
        )
    # No markers, refuse what is no JSON, no indent; keys neither sorted nor left out; no NaN.
    encode = _make_encoder(None, _refuse, _quote, None, ":", ",", False, False, False)
    return "".join(encode(value, 0))


def to_json(value: Any) -> bytes:
    """Compact JSON; the line separators that some clients split on are escaped.

    Raises ValueError on NaN or infinity.
    """
    text = _dump(value)
    if not text.isascii():
        text = text.replace("\x85", "\\u0085").replace("\u2028", "\\u2028")
        text = text.replace("\u2029", "\\u2029")
    return text.encode("utf-8", "replace")


def renders(reason: dict[Any, Any]) -> bool:
    """Whether JSON can say a finish reason: a scheduler's NaN or bytes must not get further."""
    if len(reason) == 2 and type(reason.get("type")) is str:
        value = reason.get("length") or reason.get("matched")
        if type(value) is int or type(value) is str:  # nearly all
            return True
    for key, item in reason.items():
        if type(key) is not str or type(item) not in (str, int, bool, NoneType):
            break
    else:
        return True
    try:
        to_json(reason)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def json_string(text: str) -> bytes:
    """`text` as a JSON string, quotes included."""
    if text.isalnum() and text.isascii():  # most ids: nothing to escape
        return b'"%b"' % text.encode()
    return b'"%b"' % json_escape(text)


def meta_middle(
    user_rid: bytes, finish: bytes, prompt_tokens: int, weight_version: bytes, cached: int,
    reasoning: int,
) -> bytes:  # fmt: skip
    """The part of meta_info that stays the same between two tokens, up to the extra keys.

    `user_rid` and `weight_version` are JSON strings, `finish` is JSON.
    """
    return (
        b'"id":%b,"finish_reason":%b,"prompt_tokens":%d,"weight_version":%b,'
        b'"cached_tokens":%d,"reasoning_tokens":%d'
        % (user_rid, finish, prompt_tokens, weight_version, cached, reasoning)
    )


def error_frame(message: str, code: int, index: int | None) -> bytes:
    """One SSE data line that reports an error in the middle of a stream."""
    error: dict[str, Any] = {
        "error": {
            "message": message,
            "type": "invalid_request_error" if code < 500 else "internal_error",
            "code": code,
            "retryable": code in (429, 503),
        }
    }
    if index is not None:
        error["index"] = index
    return b"data: %b\n\n" % to_json(error)


def error_body(message: str, code: int) -> bytes:
    """Body of an error answer."""
    return to_json({"error": {"message": message, "code": code}})


def ended_body(message: str, code: int) -> bytes:
    """Body of an error that a scheduler ended a request with; beside ours, for whoever looks there,
    SGLang's Python frontend's, which has one of its own for all but 400."""
    error: dict[str, Any] = {"error": {"message": message, "code": code}}
    if code != 400:
        theirs = {"message": message, "type": str(code), "param": None, "code": code}
        error |= {"object": "error", **theirs}
    return to_json(error)


def finish_json(finish: dict[str, Any] | None) -> bytes:
    """A finish reason as JSON; the two usual ones without the encoder."""
    if finish is None:
        return b"null"
    if len(finish) == 2:
        kind = finish.get("type")
        if kind == "length" and type(finish.get("length")) is int:
            return b'{"type":"length","length":%d}' % finish["length"]
        if kind == "stop" and type(finish.get("matched")) is int:
            return b'{"type":"stop","matched":%d}' % finish["matched"]
    return to_json(finish)


def meta_info(stream: Any, weight_version: bytes, latency_s: float | None) -> bytes:
    """The whole meta_info object of a stream's newest state; `latency_s` on the last frame."""
    return b"".join(meta_parts(stream, weight_version, latency_s))


def meta_parts(stream: Any, weight_version: bytes, latency_s: float | None) -> Parts:
    """`meta_info` in parts."""
    finish = stream.finish
    parts: Parts = [
        b"{",
        meta_middle(
            stream.rid_json,
            finish_json(finish),
            stream.prompt_tokens,
            weight_version,
            stream.cached,
            stream.reasoning,
        ),
    ]
    if stream.logprobs is not None:
        parts += stream.logprobs.members()
    if stream.hidden:
        parts += (b',"hidden_states":[', stream.hidden, b"]")
    if latency_s is not None:
        if stream.versions is not None:
            parts.append(b',"weight_versions":%b' % to_json(stream.versions))
        parts.append(b',"e2e_latency":%b' % repr(latency_s).encode())
    parts.append(b',"completion_tokens":%d}' % stream.completion)
    return parts


def plain_result(
    text: bytes, ids: list[int], rid_json: bytes, finish: dict[str, Any], prompt_tokens: int,
    weight_version: bytes, cached: int, reasoning: int, latency_s: float, completion: int,
) -> bytes:  # fmt: skip
    """The answer object, `meta_info` included, of an ended item that has only text and ids."""
    return (
        b'{"text":"%b","output_ids":[%b],"meta_info":{"id":%b,"finish_reason":%b,'
        b'"prompt_tokens":%d,"weight_version":%b,"cached_tokens":%d,"reasoning_tokens":%d,'
        b'"e2e_latency":%b,"completion_tokens":%d}}'
    ) % (
        text, ",".join(map(str, ids)).encode(), rid_json, finish_json(finish), prompt_tokens,
        weight_version, cached, reasoning, repr(latency_s).encode(), completion,
    )  # fmt: skip


def result_parts(stream: Any, has_text: bool, meta: Parts, indexed: bool) -> Parts:
    """One answer object from what the stream's buffers hold. The buffers themselves are among the
    parts: what has grown for thousands of tokens is not copied for each of them."""
    parts: Parts = [b'{"text":"', stream.text, IDS_OPEN] if has_text else [b'{"output_ids":[']
    parts += (stream.ids, b'],"meta_info":', *meta)
    if stream.prompt_ids is not None:
        parts.append(b',"prompt_token_ids":%b' % to_json(stream.prompt_ids))
    if indexed:
        parts.append(b',"index":%d' % stream.index)
    parts.append(b"}")
    return parts
