"""The command line's metrics flags as a MetricsConfig. Owner: the main thread."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from ..boundary.server_args import MetricsConfig
from .buckets import by_rule

_NAME: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_TAKEN: Final = ("le", "is_streaming", "cache_source", "model_name", "engine_type")


def metrics_config(given: Any, model_name: str) -> MetricsConfig | None:
    """What the flags ask for, None without --enable-metrics. Raises ValueError naming a flag."""
    labels = {"model_name": model_name, "engine_type": "unified"}
    flag = "--tokenizer-metrics-allowed-custom-labels"
    for name in given.tokenizer_metrics_allowed_custom_labels or ():
        _add(labels, name, "", flag)
    if given.extra_metric_labels is not None:
        flag = "--extra-metric-labels"
        try:
            extra = json.loads(given.extra_metric_labels)
        except ValueError as error:
            raise ValueError(f"{flag}: no JSON: {error}") from None
        if type(extra) is not dict or not all(type(v) is str and v for v in extra.values()):
            raise ValueError(f"{flag} must be an object of non-empty strings")
        for name, value in extra.items():
            _add(labels, name, value, flag)
    config = MetricsConfig(
        multiproc_dir=given.prometheus_multiproc_dir,
        labels=labels,
        bucket_time_to_first_token=given.bucket_time_to_first_token,
        bucket_inter_token_latency=given.bucket_inter_token_latency,
        bucket_e2e_request_latency=given.bucket_e2e_request_latency,
        bucket_prompt_tokens=by_rule(given.prompt_tokens_buckets, "--prompt-tokens-buckets"),
        bucket_generation_tokens=by_rule(
            given.generation_tokens_buckets, "--generation-tokens-buckets"
        ),
    )
    return config if given.enable_metrics else None


def _add(labels: dict[str, str], name: str, value: str, flag: str) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{flag}: {name!r} is no label name (letters, digits and _)")
    if name in labels or name in _TAKEN:
        raise ValueError(f"{flag}: the label {name} is there already")
    labels[name] = value
