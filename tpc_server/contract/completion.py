"""Decoder of /v1/completions bodies. Owner: the ingress core that built it."""

from __future__ import annotations

from typing import Any

from . import openai_fields as F
from .errors import BadRequest, invalid_type
from .json_body import parse_object
from .openai import OpenAICall, OpenAIDecoder, count, flag

__all__ = ["CompletionDecoder"]

_DEFAULT_MAX_TOKENS = 16


class CompletionDecoder(OpenAIDecoder):
    """Decodes /v1/completions bodies by one server's limits."""

    TABLE = F.COMPLETION_TABLE
    NAMES = {"top_logprobs_num": "logprobs", "input_ids": "prompt"}  # noqa: RUF012

    def decode(self, body: bytes) -> OpenAICall:
        """Decode one body. Raises BadRequest; every text names the field."""
        fields = parse_object(body)
        sampling, request, own = self.split(fields)
        if sampling.setdefault("max_new_tokens", _DEFAULT_MAX_TOKENS) <= 0:
            raise BadRequest("max_tokens must be positive")
        samples = sampling.get("n", 1)
        best_of = count(own, "best_of")
        if best_of is not None and best_of not in (1, samples):
            raise BadRequest("best_of is not supported by this server beyond n")
        stream = flag(own, "stream", False)
        model = self.adapter(own, request)
        include, running = self.usage_wanted(own)
        self.response_format(own, sampling)
        hidden = self.hidden(own, request)
        token_ids = flag(own, "return_token_ids", False)
        prompt = _prompt(own.get("prompt"))
        is_text = type(prompt) is str or type(prompt[0]) is str
        echo: list[str] | None = None
        if flag(own, "echo", False):
            echo = ([prompt] if type(prompt) is str else prompt) if is_text else []
        logprobs = count(own, "logprobs")
        if logprobs is not None:
            request["return_logprob"] = True
            request["return_text_in_logprobs"] = True
            request["top_logprobs_num"] = logprobs
            request["logprob_start_len"] = 0 if echo is not None and logprobs else -1
        if token_ids or (echo is not None and not is_text):
            request["return_prompt_token_ids"] = True
        wanted = self.decode_native(
            {
                "text" if is_text else "input_ids": prompt,
                "sampling_params": sampling,
                "stream": stream,
                **request,
            }
        )
        facts = {
            "model": model,
            "n": samples,
            "include_usage": include,
            "continuous_usage": running,
            "cache_report": self.facts.cache_report,
            "top_logprobs": -1 if logprobs is None else logprobs,
            "hidden": hidden,
            "token_ids": token_ids,
            "echo": echo,
        }
        return OpenAICall(wanted, facts)


def _prompt(prompt: Any) -> Any:
    """A text, token ids, or a list of either; not empty."""
    if prompt is None or prompt == "" or prompt == []:
        raise BadRequest("prompt cannot be empty")
    if type(prompt) is str:
        return prompt
    if type(prompt) is not list:
        raise invalid_type(prompt, "a string or an array", "prompt")
    kind = type(prompt[0])
    if kind is float:
        raise invalid_type(prompt[0], "a token id", "prompt[0]")
    if kind not in (str, int, list):
        raise invalid_type(prompt[0], "a string, a token id or an array of token ids", "prompt[0]")
    for k, entry in enumerate(prompt):
        if type(entry) is not kind:
            expected = {str: "a string", int: "a token id", list: "an array of token ids"}
            raise invalid_type(entry, expected[kind], f"prompt[{k}]")
        if entry == "" or entry == []:
            raise BadRequest(f"prompt[{k}] cannot be empty")
        if kind is list:
            for j, token in enumerate(entry):
                if type(token) is not int:
                    raise invalid_type(token, "a token id", f"prompt[{k}][{j}]")
    return prompt
