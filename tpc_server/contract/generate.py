"""Decoder of /generate bodies. Owner: the ingress core that built it.

Bytes in, messages for the scheduler out. A body is decoded into items, one an engine request: a
single prompt, each prompt of a batch, each sample of `n`. Everything in an item is plain data, so
that it can be sent to another core.
"""

from __future__ import annotations

import os
from typing import Any, Final

from ..boundary.messages import GENERATE, SAMPLING, generate_template
from .batch import check_copies, expand, to_ids
from .errors import BadRequest, TooMuchHere, invalid_type
from .fields import CORE, REFUSED, REQUEST_TABLE, RequestField
from .json_body import check_finite, parse_object
from .limits import (
    MAX_RID_BYTES,
    Limits,
    check_ids,
    check_ids_fit,
    check_samples,
    fit_text,
    logprob_entries,
)
from .options import Options, read_option
from .sampling import SamplingDecoder

__all__ = ["GenerateDecoder", "GenerateRequest", "Item"]

_RID: Final = GENERATE["rid"]
_TEXT: Final = GENERATE["input_text"]
_SAMPLING: Final = GENERATE["sampling_params"]
_LOGPROB: Final = GENERATE["return_logprob"]
_TOP: Final = GENERATE["top_logprobs_num"]
_STREAM: Final = GENERATE["stream"]
_HIDDEN: Final = GENERATE["return_hidden_states"]
_PRIORITY: Final = GENERATE["priority"]
_N: Final = SAMPLING["n"]
# skip_special_tokens, spaces_between_special_tokens, no_stop_trim: a plan starts with them.
_SHOWN_AS: Final = slice(SAMPLING["skip_special_tokens"], SAMPLING["no_stop_trim"] + 1)
_STOPS: Final = SAMPLING["stop_strs"]
_REGEXES: Final = SAMPLING["stop_regex_strs"]

# A scheduler answers rids that start so as its own health probes.
_RESERVED_RID: Final = "HEALTH_CHECK"
_RANDOM_BYTES: Final = 4096
_LONG_TEXT: Final = 4096  # shorter ones are tokenized anyway
_MAX_PATTERNS: Final = 64


def _count_patterns(params: Any) -> int:
    given = params.get("stop_regex") if type(params) is dict else None
    return len(given) if type(given) is list else int(given is not None)


class Item:
    """One engine request.

    rid                what the client sees, in `meta_info.id` and for aborts
    group              the rid the client gave the whole, or None: an abort of it ends this too
    text, input_ids    the prompt; exactly one is not None; ids may be packed as int64
    token_ids_logprob  for the buffer beside the message, or None
    wire               the message with rid, stop_str_max_len and input_ids still to be filled
    plan               for rendering: see `tpc_server.render.plan`
    """

    __slots__ = ("group", "input_ids", "plan", "rid", "text", "token_ids_logprob", "wire")

    def __init__(
        self,
        rid: str,
        group: str | None,
        text: str | None,
        input_ids: list[int] | bytes | None,
        token_ids_logprob: list[int] | None,
        wire: list[Any],
        plan: tuple[Any, ...],
    ) -> None:
        self.rid = rid
        self.group = group
        self.text = text
        self.input_ids = input_ids
        self.token_ids_logprob = token_ids_logprob
        self.wire = wire
        self.plan = plan

    def to_tuple(self) -> tuple[Any, ...]:
        """For `marshal`: `Item(*item.to_tuple())` is an equal item."""
        return (
            self.rid,
            self.group,
            self.text,
            self.input_ids,
            self.token_ids_logprob,
            self.wire,
            self.plan,
        )


class GenerateRequest:
    """A decoded body. `items[k]` answers at index k; with `is_batch` the answer is an array."""

    __slots__ = ("custom_labels", "is_batch", "items", "log_metrics", "stream")

    def __init__(
        self,
        stream: bool,
        is_batch: bool,
        items: list[Item],
        log_metrics: bool = True,
        custom_labels: dict[str, str] | None = None,
    ) -> None:
        self.stream = stream
        self.is_batch = is_batch
        self.items = items
        self.log_metrics = log_metrics
        self.custom_labels = custom_labels


class GenerateDecoder:
    """Decodes /generate bodies by one server's limits. Build one per core, on that core.

    A body that asks for more than `most` generations raises TooMuchHere.
    """

    def __init__(self, limits: Limits, most: int = 1 << 30) -> None:
        self._limits = limits
        self._most = most
        self._no_tokenizer = limits.skip_tokenizer_init
        self._sampling = SamplingDecoder(limits)
        self._template = generate_template()
        self._template[_PRIORITY] = limits.default_priority
        # Copies: a core reads no other core's objects.
        self._rows = {
            field.name: RequestField(*field) for field in REQUEST_TABLE if field.kind != CORE
        }
        self._random = b""
        self._random_at = 0

    def decode(self, body: bytes) -> GenerateRequest:
        """Decode one body. Raises BadRequest; every text names the field by its path."""
        return self.decode_object(parse_object(body))

    def decode_object(self, body: dict[str, Any]) -> GenerateRequest:
        """Decode a body that is already parsed. Raises BadRequest."""
        text = body.get("text")
        params = body.get("sampling_params")
        rid = body.get("rid")
        stream = body.get("stream", False)
        # The usual body: one prompt, one object of parameters, nothing else to expand.
        if (
            type(text) is str
            and 0 < len(text) <= _LONG_TEXT
            and type(params) is dict
            and type(stream) is bool
            and (rid is None or type(rid) is str)
            and len(body) == 2 + ("stream" in body) + ("rid" in body)
            and not self._no_tokenizer
        ):
            sampling = self._sampling.decode(params, "sampling_params")
            if sampling[_N] == 1:
                wire = self._template.copy()
                wire[_TEXT] = text
                wire[_SAMPLING] = sampling
                wire[_STREAM] = stream
                stops = bool(sampling[_STOPS] or sampling[_REGEXES])
                plan = (*sampling[_SHOWN_AS], False, False, False, False, 0, False, stops)
                shown = self.new_rid() if rid is None else check_rid(rid)
                item = Item(shown, None, text, None, None, wire, plan)
                return GenerateRequest(stream, False, [item])
        return self._decode_any(body)

    def _decode_any(self, body: dict[str, Any]) -> GenerateRequest:
        text = body.get("text")
        ids = body.get("input_ids")
        params = body.get("sampling_params")
        rid = body.get("rid")
        stream = body.get("stream")
        if stream is None:
            stream = False
        elif type(stream) is not bool:
            raise invalid_type(stream, "a boolean", "stream")
        options: Options | None = None
        given = (text is not None) + (ids is not None) + (params is not None)
        if len(body) != given + (rid is not None) + ("stream" in body):
            options = self._options(body)
        return self._general(text, ids, params, rid, stream, options or Options())

    def _options(self, body: dict[str, Any]) -> Options:
        options = Options()
        rows = self._rows
        for name, value in body.items():
            row = rows.get(name)
            if row is not None:
                read_option(options, row, value)
            elif name in REFUSED:
                if (
                    value is not None
                    and value is not False
                    and value != 0
                    and value not in ("", [], {})
                ):
                    raise BadRequest(f"{name} is not supported by this server: {REFUSED[name]}")
            elif name not in ("text", "input_ids", "sampling_params", "rid", "stream"):
                check_finite(value, name)  # a name that no request type has: ignored
        return options

    def _general(
        self, text: Any, ids: Any, params: Any, rid: Any, stream: bool, options: Options
    ) -> GenerateRequest:
        limits = self._limits
        # A session may hold all of the prompt.
        empty = ids == [] and text is None and (options.given.get("session_params") or [None])[0]
        prompts = [[]] if empty else self._prompts(text, ids)
        is_text = text is not None
        single = (type(text) is str) if is_text else (not ids or type(ids[0]) is not list)
        if type(params) is list and len(params) > self._most:
            raise TooMuchHere
        samplings = self._samplings(params, single, len(prompts))
        n = samplings[0][_N]
        if any([sampling[_N] != n for sampling in samplings]):
            raise BadRequest(
                "The parallel_sample_num should be the same for all samples in sample params."
            )
        total = check_samples(n, limits, len(prompts))
        if total > self._most:
            raise TooMuchHere
        if total > 1:
            size = sum([len(prompt) for prompt in prompts]) * (4 if is_text else 8)
            check_copies(size, (params, options.given), len(prompts), n, limits)
        is_batch = not single or n > 1
        rids, groups = self._rids(rid, single, len(prompts), n)
        columns = expand(options, is_batch, single, len(prompts), n, limits)
        items: list[Item] = []
        entries = 0
        for k in range(total):
            prompt = prompts[k // n]
            sampling = _own_copy(samplings[k // n])
            sampling[_N] = 1
            item = self._item(rids[k], groups[k], prompt, is_text, sampling, stream)
            columns.apply(item, k, sampling, limits)
            if not is_text:  # a text's tokens are counted once there are any
                ids_wanted = item.token_ids_logprob
                entries = logprob_entries(len(prompt), item.wire, ids_wanted, limits, entries)
            items.append(item)
        return GenerateRequest(stream, is_batch, items, options.log_metrics, options.custom_labels)

    def _item(
        self,
        rid: str,
        group: str | None,
        prompt: Any,
        is_text: bool,
        sampling: list[Any],
        stream: bool,
    ) -> Item:
        wire = self._template.copy()
        wire[_SAMPLING] = sampling
        wire[_STREAM] = stream
        if is_text:
            wire[_TEXT] = prompt
        return Item(
            rid, group, prompt if is_text else None, None if is_text else prompt, None, wire, ()
        )

    def _prompts(self, text: Any, ids: Any) -> list[Any]:
        """Prompts in order: strings, or lists of token ids."""
        if text is not None:
            if ids is not None:
                raise BadRequest("text and input_ids cannot both be given")
            if type(text) is str:
                self.check_text(text)
                return [fit_text(text, self._limits)]
            prompts = text
            if type(prompts) is not list:
                raise invalid_type(text, "a string or an array of strings", "text")
            for k, prompt in enumerate(prompts):
                if type(prompt) is not str:
                    raise invalid_type(prompt, "a string", f"text[{k}]")
                if not prompt:
                    raise BadRequest(f"text[{k}] cannot be empty")
                self.check_text(prompt)
            prompts = [fit_text(prompt, self._limits) for prompt in prompts]
            if not prompts:
                raise BadRequest("text cannot be an empty list.")
            return prompts
        if ids is None:
            raise BadRequest("Either text, input_ids or input_embeds should be provided.")
        if ids == []:
            raise BadRequest("input_ids cannot be empty.")
        limits = self._limits
        for entry in ids if type(ids) is list and type(ids[0]) is list else [ids]:
            if type(entry) is list:
                check_ids_fit(entry, limits)
        lists = to_ids(ids, "input_ids")
        for k, entry in enumerate(lists):
            if not entry:
                raise BadRequest(f"input_ids cannot be empty at `input_ids[{k}]`.")
            check_ids(entry, limits)
        return lists

    def check_text(self, text: str) -> None:
        """Refuse a prompt that cannot be encoded."""
        if not text:
            raise BadRequest("text cannot be empty")
        if self._limits.skip_tokenizer_init:
            raise BadRequest(
                "text prompts need a tokenizer and this server runs with skip_tokenizer_init:"
                " send input_ids"
            )

    def _samplings(self, params: Any, single: bool, count: int) -> list[list[Any]]:
        """One wire array a prompt (the same object where the parameters are)."""
        if params is None or type(params) is dict:
            return [self._sampling.decode(params or {}, "sampling_params")] * count
        if type(params) is not list:
            raise invalid_type(params, "an object or an array of objects", "sampling_params")
        if single:
            raise BadRequest("sampling_params should be an object for a single request.")
        if len(params) != count:
            raise BadRequest(
                f"sampling_params list length {len(params)} does not match batch size {count}"
            )
        patterns = sum([_count_patterns(entry) for entry in params])
        if patterns > _MAX_PATTERNS:  # each costs about a millisecond to admit
            raise BadRequest(
                f"sampling_params: at most {_MAX_PATTERNS} stop_regex patterns in one request,"
                f" got {patterns}"
            )
        out: list[list[Any]] = []
        for k, entry in enumerate(params):
            path = f"sampling_params[{k}]"
            if entry is not None and type(entry) is not dict:
                raise invalid_type(entry, "an object", path)
            out.append(self._sampling.decode(entry or {}, path))
        return out

    def _rids(
        self, rid: Any, single: bool, count: int, n: int
    ) -> tuple[list[str], list[str | None]]:
        """Ids the client sees, and the id that stands for each item's whole."""
        total = count * n
        if rid is None:
            return [self.new_rid() for _ in range(total)], [None] * total
        if type(rid) is str:
            check_rid(rid)
            if single and n == 1:
                return [rid], [None]
            if n == 1:
                names = [f"{rid}_{k}" for k in range(total)]
                check_rid(names[-1])
                return names, [rid] * total
            return [self.new_rid() for _ in range(total)], [rid] * total
        if type(rid) is not list:
            raise invalid_type(rid, "a string or an array of strings", "rid")
        for k, entry in enumerate(rid):
            if type(entry) is not str:
                raise invalid_type(entry, "a string", f"rid[{k}]")
            check_rid(entry)
        if single and n == 1:
            raise BadRequest("rid should be a string for a single request.")
        if len(rid) != count:
            raise BadRequest(
                "The specified rids length mismatch with the batch_size for batch processing."
            )
        if len(set(rid)) != len(rid):
            twice = [name for name in dict.fromkeys(rid) if rid.count(name) > 1]
            raise BadRequest(f"Duplicate request IDs detected within the request: {twice}")
        if n == 1:
            return rid, [None] * total
        # Samples of one prompt get fresh ids: the given one stands for all of them.
        return [self.new_rid() for _ in range(total)], [rid[k // n] for k in range(total)]

    def new_rid(self) -> str:
        """A fresh random id: 32 hex digits, unguessable."""
        at = self._random_at
        if at + 16 > len(self._random):
            self._random = os.urandom(_RANDOM_BYTES)  # one system call for many ids
            at = 0
        self._random_at = at + 16
        return self._random[at : at + 16].hex()


def check_rid(rid: str) -> str:
    """The rid itself. Raises BadRequest on one that is too long or a scheduler's own."""
    if len(rid) > MAX_RID_BYTES // 4 and len(rid.encode()) > MAX_RID_BYTES:
        raise BadRequest(f"rid is {len(rid.encode())} bytes, over the {MAX_RID_BYTES}-byte limit")
    if rid.startswith(_RESERVED_RID):
        raise BadRequest(f"rid must not start with {_RESERVED_RID}")
    return rid


def _own_copy(sampling: list[Any]) -> list[Any]:
    """A copy whose lists nobody else fills."""
    out = sampling.copy()
    out[_STOPS] = out[_STOPS].copy()
    out[_REGEXES] = out[_REGEXES].copy()
    return out
