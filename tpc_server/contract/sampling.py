"""Sampling parameters of a request to the array a scheduler takes. Owner: the core that decodes.

A decoder compiles the declared table (`sampling_fields.py`) to one of its own, so that no core
reads another's objects.
"""

from __future__ import annotations

from typing import Any, Final

from ..boundary.messages import SAMPLING, sampling_template
from .errors import BadRequest, invalid_type, unknown_field
from .limits import Limits
from .sampling_fields import (
    BIAS,
    BOOL,
    CUSTOM,
    FLOAT,
    INT,
    INTS,
    MAX_REGEX_BYTES,
    MAX_STOP_BYTES,
    MAX_STOPS,
    NO_TOP_K,
    SAMPLING_NAMES,
    SAMPLING_TABLE,
    STR,
    STRINGS,
    WATERMARK,
)
from .values import (
    HUGE,
    I64_MAX,
    I64_MIN,
    as_float,
    choice,
    custom_params,
    decimal,
    stop_ids,
    strings,
    watermark,
)

_GREEDY_BELOW: Final = 1e-6
_MOST_KNOWN: Final = 256
_GRAMMARS: Final = ("json_schema", "regex", "ebnf", "structural_tag")

_MAX_NEW: Final = SAMPLING["max_new_tokens"]
_STOP: Final = SAMPLING["stop"]
_STOP_REGEX: Final = SAMPLING["stop_regex"]
_TEMPERATURE: Final = SAMPLING["temperature"]
_TOP_K: Final = SAMPLING["top_k"]
_MIN_NEW: Final = SAMPLING["min_new_tokens"]
_N: Final = SAMPLING["n"]
_WATERMARK: Final = SAMPLING["watermark"]
_SEED: Final = SAMPLING["sampling_seed"]
_STOP_STRS: Final = SAMPLING["stop_strs"]
_REGEX_STRS: Final = SAMPLING["stop_regex_strs"]
_REGEX_MAX: Final = SAMPLING["stop_regex_max_len"]
_FIRST_GRAMMAR: Final = SAMPLING["json_schema"]
_LAST_GRAMMAR: Final = SAMPLING["structural_tag"] + 1
_NO_GRAMMARS: Final = [None, None, None, None]


class SamplingDecoder:
    """Turns `sampling_params` objects into wire arrays. One per core.

    Raises ValueError when the server's preferred parameters are themselves not valid.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._vocab_size = limits.vocab_size
        self._no_tokenizer = limits.skip_tokenizer_init
        self._template = sampling_template()
        self._template[_MAX_NEW] = limits.default_max_new_tokens
        # `choice` never reaches a scheduler. Like `watermark` it only ever leaves None.
        self._rows = {
            field.name: (
                SAMPLING.get(field.name, _WATERMARK),
                field.kind,
                field.default,
                field.low,
                field.high,
                field.text,
            )
            for field in SAMPLING_TABLE
        }
        # Arrays of parameters that are but numbers and booleans: clients repeat theirs.
        self._known: dict[tuple[Any, ...], list[Any]] = {}
        self._preferred = dict(limits.preferred_sampling_params)
        try:
            self.decode({}, "preferred_sampling_params")
        except BadRequest as error:
            raise ValueError(f"preferred_sampling_params: {error.message}") from None

    def decode(self, params: dict[str, Any], path: str) -> list[Any]:
        """The wire array (33 entries, normalized) of one request's parameters.

        `n` keeps the number of samples asked for; the caller fans out. `stop_str_max_len` is left
        0 for who has the tokenizer. Raises BadRequest.
        """
        seed = params.get("sampling_seed")
        rest = params
        if seed is not None:  # the one that differs from request to request
            if type(seed) is not int or not I64_MIN <= seed <= I64_MAX:
                return self._decode(params, path)
            rest = params.copy()
            del rest["sampling_seed"]
        values = rest.values()
        # The types tell 1 from 1.0 and True, which are equal.
        key = (*rest, *values, *map(type, values))
        try:
            known = self._known.get(key)
        except TypeError:  # a list or an object
            return self._decode(params, path)
        if known is None:
            known = self._decode(rest, path)
            if str in key:
                if seed is not None:
                    known[_SEED] = seed
                return known
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[key] = known
        out = known.copy()
        out[_STOP_STRS] = []
        out[_REGEX_STRS] = []
        if seed is not None:
            out[_SEED] = seed
        return out

    def _decode(self, params: dict[str, Any], path: str) -> list[Any]:
        out = self._template.copy()
        if self._preferred:
            params = {**self._preferred, **params}
        if not params:
            out[_STOP_STRS] = []
            out[_REGEX_STRS] = []
            return out
        rows = self._rows
        rare = False
        for name, value in params.items():
            row = rows.get(name)
            if row is None:
                raise unknown_field(name, SAMPLING_NAMES)
            index, kind, default, low, high, text = row
            if value is None:
                out[index] = default
            elif kind == FLOAT:
                if type(value) is int:
                    value = as_float(value)
                elif type(value) is not float:
                    raise invalid_type(value, "a number", f"{path}.{name}")
                if not low <= value <= high:
                    raise BadRequest(text.format(value))
                out[index] = value
            elif kind == INT:
                if type(value) is not int or not I64_MIN <= value <= I64_MAX:
                    raise invalid_type(value, "an integer", f"{path}.{name}")
                if not low <= value <= high:
                    raise BadRequest(text.format(value))
                out[index] = value
            elif kind == BOOL:
                if type(value) is not bool:
                    raise invalid_type(value, "a boolean", f"{path}.{name}")
                out[index] = value
            else:
                out[index] = self._other(kind, value, path, name)
                rare = True
        if out[_TEMPERATURE] < _GREEDY_BELOW:
            out[_TEMPERATURE] = 1.0
            out[_TOP_K] = 1
        elif out[_TOP_K] < 1:
            if out[_TOP_K] != -1:
                raise BadRequest(f"top_k must be -1 (disable) or at least 1, got {out[_TOP_K]}.")
            out[_TOP_K] = NO_TOP_K
        if out[_MIN_NEW]:
            self._check_min_new(out)
        # Lists of its own for every request: they are filled and kept by others.
        if rare:
            self._stop_rules(out, path)
        else:
            out[_STOP_STRS] = []
            out[_REGEX_STRS] = []
        return out

    def _other(self, kind: int, value: Any, path: str, name: str) -> Any:
        """Parameters that are neither number nor boolean."""
        if kind == STRINGS:
            if type(value) is str:
                return [value]
            return strings(value, f"{path}.{name}")
        path = f"{path}.{name}"
        if kind == STR:
            if type(value) is not str:
                raise invalid_type(value, "a string", path)
            return value or None  # an empty grammar is none
        if kind == INTS:
            ids = stop_ids(value, path)
            if ids and len(ids) > self._vocab_size:
                raise BadRequest(
                    f"{name} has {len(ids)} ids, over the vocabulary of {self._vocab_size}"
                )
            return ids
        if kind == BIAS:
            return self._bias(value, path)
        if kind == CUSTOM:
            return custom_params(value, path)
        if kind == WATERMARK:
            return watermark(value, path)
        return choice(value, path)

    def _bias(self, value: Any, path: str) -> dict[str, float] | None:
        if type(value) is not dict:
            raise invalid_type(value, "an object", path)
        out: dict[str, float] = {}
        for key, bias in value.items():
            if type(bias) is int:
                bias = as_float(bias)
            elif type(bias) is not float:
                raise invalid_type(bias, "a number", f"{path}.{key}")
            if not -HUGE <= bias <= HUGE:
                raise BadRequest(f"number out of range at `{path}.{key}`")
            token = decimal(key) if key.isalnum() else None  # bare digits
            if token is None or token >= self._vocab_size:
                raise BadRequest(
                    f"logit_bias must have keys in [0, {self._vocab_size - 1}], got {key}."
                )
            if str(token) in out:
                raise BadRequest(f"logit_bias names token {token} twice, as {key!r} too")
            out[str(token)] = bias
        return out or None

    def _check_min_new(self, out: list[Any]) -> None:
        if out[_MAX_NEW] is not None and out[_MIN_NEW] > out[_MAX_NEW]:
            raise BadRequest(
                f"min_new_tokens must be in [0, max_new_tokens({out[_MAX_NEW]})],"
                f" got {out[_MIN_NEW]}."
            )
        if self._no_tokenizer:
            raise BadRequest(
                f"min_new_tokens={out[_MIN_NEW]} is unavailable when skip_tokenizer_init=True"
                " (requires tokenizer for eos_token_id)."
            )

    def _stop_rules(self, out: list[Any], path: str) -> None:
        """Move stops to where schedulers look for them; check stops and grammars."""
        stops, regexes = out[_STOP], out[_STOP_REGEX]
        out[_STOP] = out[_STOP_REGEX] = None
        if stops:
            if len(stops) > MAX_STOPS or "" in stops or self._no_tokenizer:
                self._refuse_stops(stops)
            size = len("".join(stops))
            if size * 4 > MAX_STOP_BYTES:
                self._check_stop_bytes(stops, path)
            out[_STOP_STRS] = stops
        else:
            out[_STOP_STRS] = []
        out[_REGEX_STRS] = self._regexes(regexes, out, path) if regexes else []
        grammars = out[_FIRST_GRAMMAR:_LAST_GRAMMAR]
        if grammars != _NO_GRAMMARS:
            self._grammar(grammars)

    def _refuse_stops(self, stops: list[str]) -> None:
        if len(stops) > MAX_STOPS:
            raise BadRequest(f"at most {MAX_STOPS} stop strings are allowed, got {len(stops)}")
        if "" in stops:
            raise BadRequest("stop cannot contain an empty string.")
        self._needs_tokenizer("stop", stops)

    def _check_stop_bytes(self, stops: list[str], path: str) -> None:
        size = len("".join(stops))
        if size <= MAX_STOP_BYTES:
            size = len("".join(stops).encode())
        if size > MAX_STOP_BYTES:
            raise BadRequest(
                f"stop strings of more than {MAX_STOP_BYTES} bytes together are not allowed"
                f" at `{path}.stop`"
            )

    def _regexes(self, patterns: list[str], out: list[Any], path: str) -> list[str]:
        # Here, because few requests pay for it and the text modules need not load for the rest.
        from ..text.stop_patterns import MAX_WAYS_TOGETHER, check_stop_regex
        from ..text.stops import stop_regex_max_len

        if len(patterns) > MAX_STOPS:
            raise BadRequest(
                f"at most {MAX_STOPS} stop_regex patterns are allowed, got {len(patterns)}"
            )
        if "" in patterns:
            raise BadRequest("stop_regex cannot contain an empty pattern.")
        ways = 0
        for pattern in patterns:
            size = len(pattern.encode())
            if size > MAX_REGEX_BYTES:
                raise BadRequest(
                    f"stop_regex is {size} bytes, over the {MAX_REGEX_BYTES}-byte limit"
                )
            try:
                ways += check_stop_regex(pattern) - 1
            except ValueError as error:
                raise BadRequest(f"invalid stop_regex at `{path}.stop_regex`: {error}") from None
        if ways > MAX_WAYS_TOGETHER:
            raise BadRequest(
                f"invalid stop_regex at `{path}.stop_regex`: the patterns leave too many choices"
                " together; they may run too long"
            )
        self._needs_tokenizer("stop_regex", patterns)
        out[_REGEX_MAX] = stop_regex_max_len(patterns)
        return patterns

    def _needs_tokenizer(self, name: str, value: list[str]) -> None:
        if self._no_tokenizer:
            raise BadRequest(
                f"{name}={value!r} is unavailable when skip_tokenizer_init=True"
                " (requires tokenizer to decode tokens to text for matching)."
            )

    def _grammar(self, grammars: list[str | None]) -> None:
        given = [name for name, text in zip(_GRAMMARS, grammars, strict=True) if text]
        if len(given) > 1:
            raise BadRequest("Only one of json_schema, regex, ebnf, or structural_tag can be set.")
        if given and not self._limits.grammars:
            raise BadRequest(f"{given[0]} is not supported by this server's engine")
