"""Frames to the frontend: which requests are due, and their rows. Owner: the engine thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from tpc_server.boundary.columns import FAMILIES, HIDDEN, pack_frame, pack_queue_abort

from .request import LogprobFamily, Request
from .settings import LlamaSettings
from .stops import is_held_back

Frame = tuple[bytes, list[bytes]]
_PER_LIST = ("val", "idx")


def is_due(request: Request, settings: LlamaSettings) -> bool:
    """Whether the request gets a row in this step's frame.

    A finished one always; a stream every `stream_interval` tokens, the first at once; any other
    every `force_stream_interval`, so that its client's liveness is known. Text that may become a
    stop string is held back in all but the last frame.
    """
    if request.finish is not None:
        return True
    unsent = len(request.output) - request.sent
    if unsent == 0:
        return False
    if request.stream:
        interval = request.stream_interval or settings.stream_interval
        if unsent < interval and request.sent:
            return False
    elif len(request.output) % settings.force_stream_interval:
        return False
    return not is_held_back(request)


def build_frame(
    pack: Callable[[Any], bytes], requests: Sequence[Request], weight_version: str
) -> Frame:
    """The frame of these requests' rows. Changes nothing: `mark_sent` does, after the push."""
    finished = [request.finish is not None for request in requests]
    versions = [
        [[weight_version, 0, len(request.output)]] if done else None
        for request, done in zip(requests, finished, strict=True)
    ]
    now = time.perf_counter()
    latencies = {
        row: now - request.prefilled_at
        for row, request in enumerate(requests)
        if request.finish is not None and not request.stream and request.prefilled_at is not None
    }
    return pack_frame(
        pack,
        [request.rid for request in requests],
        [request.finish for request in requests],
        [len(request.prompt) for request in requests],
        [request.output[request.sent :] for request in requests],
        [request.cached for request in requests],
        [0] * len(requests),
        families=_families(requests),
        weight_versions=versions if any(finished) else None,
        decode_latencies=latencies,
    )


def build_abort(pack: Callable[[Any], bytes], request: Request, weight_version: str) -> Frame:
    """The frame of a request that ends before it started."""
    assert request.finish is not None
    return pack_queue_abort(
        pack, request.rid, request.finish, len(request.prompt),
        weight_versions=[[weight_version, 0, 0]],
    )  # fmt: skip


def build_refusal(
    pack: Callable[[Any], bytes], rid: str, finish: dict[str, Any], n_prompt: int
) -> Frame:
    """The frame of a request that cannot be done at all."""
    return pack_frame(pack, [rid], [finish], [n_prompt], [[]], [0], [0])


def mark_sent(requests: Sequence[Request]) -> None:
    """The rows of these requests went out."""
    for request in requests:
        request.sent = len(request.output)
        request.input_lp_sent = True
        if request.output_lp is not None:
            request.lp_sent = len(request.output_lp.val)


def _families(requests: Sequence[Request]) -> dict[str, list[Any]]:
    """Logprob and hidden-state columns, one cell a row; empty where nobody asked."""
    columns: dict[str, list[Any]] = {}
    if any(request.lp_wish is not None for request in requests):
        for name in FAMILIES:
            columns[f"{name}_val"] = []
            columns[f"{name}_idx"] = []
        for request in requests:
            _add_logprobs(columns, request)
    if any(request.hidden_mode for request in requests):
        # Whole lists in every frame, as SGLang sends them: a later frame replaces an earlier one.
        columns[HIDDEN] = [
            (request.hidden[-1:] if request.hidden_mode == "last" else request.hidden)
            if request.hidden_mode
            else None
            for request in requests
        ]
    return columns


def _add_logprobs(columns: dict[str, list[Any]], request: Request) -> None:
    output = request.output_lp
    prompt = request.input_lp
    if prompt is not None and request.input_lp_sent:
        prompt = None
    for family, side, start in ((output, "output", request.lp_sent), (prompt, "input", 0)):
        for kind, field in (
            ("token_logprobs", ""),
            ("top_logprobs", "top_"),
            ("token_ids_logprobs", "ids_"),
        ):
            for part in _PER_LIST:
                columns[f"{side}_{kind}_{part}"].append(_cell(family, f"{field}{part}", start))


def _cell(family: LogprobFamily | None, name: str, start: int) -> list[Any]:
    if family is None:
        return []
    entries: list[Any] = getattr(family, name)
    return entries[start:] if start else entries
