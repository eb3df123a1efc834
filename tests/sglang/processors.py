"""A logit processor that SGLang's scheduler finds by its name. Owner: the scheduler's process."""

from __future__ import annotations

from typing import Any


class Forced:
    """The next token is the one that a request's `custom_params` name."""

    def __call__(self, logits: Any, custom_param_list: list[dict[str, Any]]) -> Any:
        """One row of logits a request."""
        for k, params in enumerate(custom_param_list):
            logits[k, :] = float("-inf")
            logits[k, params["token_id"]] = 0.0
        return logits
