"""A server's arguments as JSON values, and back. Owner: stateless; standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ..affinity.plan import CorePlan, CoreSpec
from ..boundary.server_args import (
    DefaultSamplingParams,
    DisaggregationMode,
    MetricsConfig,
    ModelConfig,
    ServerArgs,
)
from ..config import Options

_RECORDS = {
    "model_config": ModelConfig,
    "default_sampling_params": DefaultSamplingParams,
    "metrics": MetricsConfig,
}
_MODES = (DisaggregationMode.Null, DisaggregationMode.Prefill, DisaggregationMode.Decode)


def args_to_plain(args: Any) -> dict[str, Any]:
    """A record of arguments by field name."""
    out: dict[str, Any] = {}
    for name, _kind, _default in args.FIELDS:
        value = getattr(args, name)
        if hasattr(value, "FIELDS"):
            value = args_to_plain(value)
        elif isinstance(value, Mapping):
            value = dict(value)
        elif isinstance(value, (tuple, list)):
            value = [list(v) if isinstance(v, tuple) else v for v in value]
        out[name] = value
    return out


def args_from_plain(plain: Mapping[str, Any], kind: Any = ServerArgs) -> Any:
    """The record again. Raises TypeError on a field that it does not have."""
    given = dict(plain)
    for name, record in _RECORDS.items():
        if given.get(name) is not None:
            given[name] = args_from_plain(given[name], record)
    if "disaggregation_mode" in given:
        given["disaggregation_mode"] = next(m for m in _MODES if m == given["disaggregation_mode"])
    return kind(**given)


def options_to_plain(options: Options) -> dict[str, Any]:
    """Every option but the plan, which goes by itself."""
    return {f.name: getattr(options, f.name) for f in fields(options) if f.name != "plan"}


def options_from_plain(plain: Mapping[str, Any]) -> Options:
    """The options again."""
    given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in plain.items()}
    return Options(**given)


def plan_to_plain(plan: CorePlan) -> dict[str, Any]:
    """Cores, order and reason of a plan."""
    return {
        "cores": [[c.index, list(c.cpus), list(c.stages)] for c in plan.cores],
        "order": [list(order) for order in plan.order],
        "scheduler_cpus": list(plan.scheduler_cpus),
        "reason": plan.reason,
        "warnings": list(plan.warnings),
    }


def plan_from_plain(plain: Mapping[str, Any]) -> CorePlan:
    """The plan again."""
    return CorePlan(
        cores=tuple(CoreSpec(i, tuple(cpus), tuple(stages)) for i, cpus, stages in plain["cores"]),
        scheduler_cpus=tuple(plain["scheduler_cpus"]),
        reason=plain["reason"],
        warnings=tuple(plain["warnings"]),
        order=tuple(tuple(order) for order in plain["order"]),
    )
