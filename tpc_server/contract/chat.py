"""Decoder of /v1/chat/completions bodies. Owner: the ingress core that built it."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from ..boundary.messages import GENERATE
from ..parsers.formats import TOOL_PARSERS
from ..text import chat_prompt
from . import openai_fields as F
from .chat_messages import check_messages, check_tools, tool_choice
from .errors import BadRequest, invalid_type
from .json_body import check_finite, parse_object
from .limits import check_samples
from .openai import OpenAICall, OpenAIDecoder, count, flag

__all__ = ["ChatDecoder"]

# Fields that change nothing of `_wishes`.
_USUAL: Final = frozenset(("messages", "model", "stream"))
_EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max")
_TEXT: Final = GENERATE["input_text"]
# Stands for the prompt until it is rendered.
_RENDERED_LATER: Final = "-"


class _Wishes(NamedTuple):
    """What a request's fields beside its messages come to; read only."""

    facts: dict[str, Any]  # members of `render.openai.Spec`
    tools: list[dict[str, Any]]  # for the template
    kwargs: dict[str, Any]  # the same


class ChatDecoder(OpenAIDecoder):
    """Decodes /v1/chat/completions bodies by one server's limits."""

    TABLE = F.CHAT_TABLE
    NAMES = {"top_logprobs_num": "top_logprobs"}  # noqa: RUF012
    _usual: tuple[_Wishes, dict[str, Any], dict[str, Any]] | None = None

    def decode(self, body: bytes) -> OpenAICall:
        """Decode one body. Raises BadRequest; every text names the field."""
        return self.decode_fields(parse_object(body), len(body))

    def decode_fields(self, fields: dict[str, Any], size: int) -> OpenAICall:
        """Decode a body of `size` bytes that is already parsed. Raises BadRequest."""
        most = "max_tokens"  # the name that counts
        newer = fields.get("max_completion_tokens")
        if type(newer) is int and newer == 0:  # as if it were not there
            del fields["max_completion_tokens"]
        elif newer is not None:
            # Last, so that it counts: the other one is its older name.
            fields["max_completion_tokens"] = fields.pop("max_completion_tokens")
            most = "max_completion_tokens"
        sampling, request, own = self.split(fields)
        messages, texts = check_messages(own.get("messages"))
        self._max_tokens(sampling, most)
        for name, value in self.facts.default_sampling.items():
            sampling.setdefault(name, value)
        stream = flag(own, "stream", False)
        model = self.adapter(own, request)
        if own.keys() <= _USUAL:  # what all such requests get alike
            usual = self._usual
            if usual is None:
                more: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
                usual = self._usual = (self._wishes(own, stream, *more), *more)
            wishes = usual[0]
            sampling.update(usual[1])
            request.update(usual[2])
        else:
            wishes = self._wishes(own, stream, sampling, request)
        prompt = self._prompt(own, messages, texts, wishes.tools, wishes.kwargs)
        native = {"sampling_params": sampling, "stream": stream, **request}
        if type(prompt) is tuple:
            native["text"] = _RENDERED_LATER
        else:
            native["input_ids"] = prompt
        samples = sampling.get("n", 1)
        check_samples(samples, self.limits)
        if samples > 1 and size * (samples - 1) > self.limits.max_clone_bytes:
            raise BadRequest(
                f"n is too large: {samples} copies of this conversation exceed"
                f" {self.limits.max_clone_bytes} bytes"
            )
        wanted = self.decode_native(native, most)
        if type(prompt) is tuple:
            for item in wanted.items:
                item.text = prompt  # type: ignore[assignment]
                item.wire[_TEXT] = None
        return OpenAICall(wanted, {"model": model, "n": samples, **wishes.facts})

    def _wishes(
        self, own: dict[str, Any], stream: bool, sampling: dict[str, Any], request: dict[str, Any]
    ) -> _Wishes:
        """What the fields beside the messages ask for; adds to the two native dicts."""
        include, running = self.usage_wanted(own)
        self.response_format(own, sampling)
        hidden = self.hidden(own, request)
        meta_info, token_ids = self._extras(own, stream, request)
        top = self._logprobs(own, request)
        kwargs = self._template_kwargs(own)
        tools = check_tools(own["tools"]) if "tools" in own else []
        parser = self._parser(own, tools, kwargs, sampling, request)
        if parser is not None and parser[1] is None:
            tools = []
        facts = {
            "include_usage": include,
            "continuous_usage": running,
            "cache_report": self.facts.cache_report,
            "top_logprobs": top,
            "hidden": hidden,
            "token_ids": token_ids,
            "meta_info": meta_info,
            "parser": parser,
        }
        return _Wishes(facts, tools, kwargs)

    # -- fields ------------------------------------------------------------------------

    def _max_tokens(self, sampling: dict[str, Any], name: str) -> None:
        most = sampling["max_new_tokens"] = sampling.get("max_new_tokens") or None
        context = self.limits.context_len
        if most is not None and most > context and not self.limits.allow_auto_truncate:
            raise BadRequest(
                f"{name} is too large: {most}. This model supports at most"
                f" {context} completion tokens."
            )

    def _extras(
        self, own: dict[str, Any], stream: bool, request: dict[str, Any]
    ) -> tuple[bool, bool]:
        """(return_meta_info, whether token ids are returned); not while streaming."""
        given = [
            flag(own, name, False)
            for name in ("return_meta_info", "return_token_ids", "return_prompt_token_ids")
        ]
        if stream and any(given):
            name = ("return_meta_info", "return_token_ids", "return_prompt_token_ids")[
                given.index(True)
            ]
            raise BadRequest(f"{name} is not supported with streaming: set stream to false.")
        token_ids = given[1] or given[2]
        if token_ids:
            request["return_prompt_token_ids"] = True
        return given[0], token_ids

    def _logprobs(self, own: dict[str, Any], request: dict[str, Any]) -> int:
        """Alternatives a token; -1 without logprobs."""
        wanted = flag(own, "logprobs", False)
        top = count(own, "top_logprobs")
        flag(own, "return_flat_raw_top_logprobs_b64", True)  # the form of what is refused
        if not wanted:
            if top:
                raise BadRequest("top_logprobs needs logprobs to be true.")
            return -1
        request["return_logprob"] = True
        request["return_text_in_logprobs"] = True
        request["top_logprobs_num"] = top or 0
        return top or 0

    def _template_kwargs(self, own: dict[str, Any]) -> dict[str, Any]:
        """Variables of the template: the request's own, and what its effort implies."""
        given = own.get("chat_template_kwargs")
        if given is None:
            given = {}
        elif type(given) is not dict:
            raise invalid_type(given, "an object", "chat_template_kwargs")
        check_finite(given, "chat_template_kwargs")
        if "chat_template" in given:
            raise BadRequest("chat_template_kwargs.chat_template is not allowed on this server")
        out = dict(given)
        effort, enabled = _effort(own)
        if effort is None:
            effort = out.get("reasoning_effort", self.facts.template_kwargs.get("reasoning_effort"))
        thinking = True if enabled else None
        if effort is not None:
            out["reasoning_effort"] = effort
            thinking = effort != "none"
        if "thinking" in own:
            mode = own["thinking"]
            if type(mode) is not dict:
                raise invalid_type(mode, "an object", "thinking")
            if type(mode.get("type")) is not str:
                raise invalid_type(mode.get("type"), "a string", "thinking.type")
            out.setdefault("thinking_mode", mode["type"])
        if thinking is not None:
            out.setdefault("thinking", thinking)
            out.setdefault("enable_thinking", thinking)
        return out

    def _prompt(
        self, own: dict[str, Any], messages: list[Any], texts: int, tools: list[Any],
        kwargs: dict[str, Any],
    ) -> Any:  # fmt: skip
        """Token ids, or the conversation for the template."""
        ids = own.get("input_ids")
        if ids is not None:
            if type(ids) is not list or not all([type(token) is int for token in ids]):
                raise invalid_type(ids, "an array of token ids", "input_ids")
            return ids
        return self._rendered(own, messages, texts, tools, kwargs, None)

    def _rendered(
        self, own: dict[str, Any], messages: list[Any], texts: int, tools: list[Any],
        kwargs: dict[str, Any], add_generation_prompt: bool | None,
    ) -> tuple[Any, ...]:  # fmt: skip
        if not self.facts.has_chat_template:
            raise BadRequest(
                "this model has no chat template: start the server with --chat-template,"
                " or use /v1/completions"
            )
        return chat_prompt.chat(
            messages, tools or None, kwargs or None, add_generation_prompt,
            flag(own, "continue_final_message", False), texts,
        )  # fmt: skip

    def conversation(self, fields: dict[str, Any]) -> tuple[Any, ...]:
        """What /tokenize renders: the messages of a body, as a chat request's by default."""
        own = self.split(fields)[2]
        add = fields.get("add_generation_prompt")
        if add is False and own.get("continue_final_message"):
            raise BadRequest(
                "continue_final_message needs add_generation_prompt: it opens the assistant's turn"
            )
        messages, texts = check_messages(own.get("messages"))
        tools = check_tools(own["tools"]) if "tools" in own else []
        if tool_choice(own.get("tool_choice"), tools) == "none":
            tools = []
        return self._rendered(own, messages, texts, tools, self._template_kwargs(own), add)

    # -- tools and reasoning -----------------------------------------------------------

    def _parser(
        self, own: dict[str, Any], tools: list[Any], kwargs: dict[str, Any],
        sampling: dict[str, Any], request: dict[str, Any],
    ) -> tuple[Any, ...] | None:  # fmt: skip
        """(reasoning parser, tool parser, options), or None when the text is only content."""
        facts = self.facts
        choice = tool_choice(own.get("tool_choice"), tools)
        parallel = flag(own, "parallel_tool_calls", True)
        separate = flag(own, "separate_reasoning", True)
        one_piece = not flag(own, "stream_reasoning", True)
        reasoning = facts.reasoning_parser
        options: dict[str, Any] = {}
        if reasoning is not None:
            from ..parsers.formats import thinks

            opens = facts.opens if own.get("input_ids") is None else None
            known = {**facts.template_kwargs, **kwargs}
            inside, may = thinks(reasoning, known, opens, _continued(own))
            if may:
                request["require_reasoning"] = True
            options = {"stream_reasoning": not one_piece, "force_reasoning": inside}
            if not separate:
                reasoning = None
        tool_parser = None
        if choice != "none":
            tool_parser = self._tool_parser(choice, tools, parallel, sampling)
            sampling["skip_special_tokens"] = False  # markers of calls may be special tokens
            names = [tool["function"]["name"] for tool in tools]
            options["tool_names"] = [choice[1:]] if choice[0] == "=" else names
            options["tool_choice"] = "auto" if choice == "auto" else "required"
            options["parallel"] = parallel
        if reasoning is None and tool_parser is None:
            return None
        return reasoning, tool_parser, options

    def _tool_parser(
        self, choice: str, tools: list[Any], parallel: bool, sampling: dict[str, Any]
    ) -> str:
        """The parser for a choice; where a call is demanded its grammar goes to the engine."""
        if choice == "auto":
            if self.facts.tool_parser is None:
                raise BadRequest(
                    "tools needs a server that was started with --tool-call-parser"
                    f" ({', '.join(sorted(TOOL_PARSERS))});"
                    " tool_choice none leaves the tools uncalled"
                )
            return self.facts.tool_parser
        from ..parsers.choice import json_schema_for_choice

        if not self.limits.grammars:
            raise BadRequest(
                "tool_choice cannot be required, or one function: that needs an engine with"
                " grammars, and this server's engine has none"
            )
        for name in ("regex", "ebnf", "json_schema", "structural_tag"):
            if sampling.get(name):
                raise BadRequest(
                    "tool_choice cannot be required, or one function, together with"
                    " response_format, regex or ebnf"
                )
        try:
            wanted = choice if choice == "required" else {"function": {"name": choice[1:]}}
            schema = json_schema_for_choice(tools, wanted, parallel)
        except ValueError as error:
            raise BadRequest(str(error)) from None
        sampling["json_schema"] = schema
        return "json"


def _continued(own: dict[str, Any]) -> str:
    """The beginning of the answer, where the request has it."""
    last = own["messages"][-1]
    if not own.get("continue_final_message") or last.get("role") != "assistant":
        return ""
    content = last.get("content")
    return content if type(content) is str else ""


def _effort(own: dict[str, Any]) -> tuple[Any, bool]:
    """(reasoning effort or None, whether reasoning was switched on)."""
    enabled = False
    effort = own.get("reasoning_effort")
    path = "reasoning_effort"
    reasoning = own.get("reasoning")
    if reasoning is not None:
        if type(reasoning) is not dict:
            raise invalid_type(reasoning, "an object", "reasoning")
        if reasoning.get("effort") is not None:
            effort, path = reasoning["effort"], "reasoning.effort"
        enabled = flag(reasoning, "enabled", False, "reasoning.")
    if effort is None:
        return None, enabled
    if type(effort) is str:
        if effort not in _EFFORTS:
            raise BadRequest(f"{path} must be one of {', '.join(_EFFORTS)}, got {effort[:64]!r}")
    elif type(effort) not in (int, float):
        raise invalid_type(effort, "a string or a number", path)
    elif not 0 <= effort <= 0.99:
        raise BadRequest(f"{path} must be in [0, 0.99], got {effort}")
    return effort, enabled
