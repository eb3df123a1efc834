"""SGLang's own rules for the cores of its in-process server. Owner: none, pure functions.

The scheduler process divides its CPUs into its own ("launch") and the server's, then the server
deals its CPUs out to its threads. Same inputs, same answers as SGLang 0.5.23, so that a scheduler
that asks us for a server finds its CPUs as it expects them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tpc_server.affinity.cores_arg import STAGES
from tpc_server.affinity.cpulist import format_cpus
from tpc_server.affinity.plan import CorePlan, CoreSpec

# SGLang's server runs its HTTP side on two workers unless told otherwise.
API_WORKERS = 2


def partition_cores(
    allowed: Iterable[int] | None, mm_workers: int = 0
) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """(CPUs of the scheduler thread, CPUs of the server); (None, None) = pin neither.

    ``allowed`` is the process's affinity mask, None where it cannot be read. Gaps are kept.
    """
    cpus = sorted(set(allowed)) if allowed is not None else []
    if len(cpus) < 4:
        return None, None
    reserve = min(2, len(cpus) // 4)
    size = max(8, mm_workers + 4)
    return tuple(cpus[:reserve]), tuple(cpus[reserve : reserve + size])


@dataclass(frozen=True, slots=True)
class ThreadCores:
    """CPUs of each kind of thread of SGLang's server; all empty = unpinned."""

    api: tuple[int, ...] = ()
    tokenizer: tuple[int, ...] = ()
    detokenizer: tuple[int, ...] = ()
    from_scheduler: tuple[int, ...] = ()
    to_scheduler: tuple[int, ...] = ()
    warning: str = ""


def plan_cores(server: Sequence[int] | None, api: int, tok: int, detok: int) -> ThreadCores:
    """Deal the server's CPUs out: ``api`` + ``tok`` + ``detok`` in turn, then the two managers.

    Too few CPUs for one each pins nothing, with a warning.
    """
    if not server:
        return ThreadCores()
    need = api + tok + detok
    if len(server) < need:
        return ThreadCores(
            warning=f"{len(server)} cores (CPU {format_cpus(server)}) are fewer than the {need} "
            f"wanted ({api} api + {tok} tokenizer + {detok} detokenizer): nothing is pinned"
        )
    cpus = tuple(server)
    api_cpus = cpus[:api]
    rest = cpus[need:]
    return ThreadCores(
        api=api_cpus,
        tokenizer=cpus[api : api + tok],
        detokenizer=cpus[api + tok : need],
        from_scheduler=rest[:1] or api_cpus,
        to_scheduler=rest[1:2] or rest[:1] or api_cpus,
    )


def plan_for_server(
    cores: Sequence[int] | None,
    tokenizer_worker_num: int = 1,
    detokenizer_worker_num: int = 1,
    *,
    api_workers: int = API_WORKERS,
    allowed_cpus: int | None = None,
) -> CorePlan:
    """The plan of ``Server(cores=...)`` for our stages.

    SGLang's api and detokenizer threads together do what one of our I/O cores does, so each CPU of
    either kind becomes an I/O core (detok beside the socket saves a queue per token); tokenizer
    CPUs become tokenize cores. The managers' CPUs stay free: our queues need no threads.

    Unpinned (``cores`` None, empty, or too few) there is one I/O core per detokenizer worker and,
    from three cores on, one tokenize core per tokenizer worker; ``allowed_cpus``, where given,
    bounds the number of cores. The scheduler's mask is its own affair: ``scheduler_cpus`` is ().
    """
    tok = max(1, tokenizer_worker_num)
    detok = max(1, detokenizer_worker_num)
    dealt = plan_cores(cores, max(1, api_workers), tok, detok)
    if dealt.api:
        io_cpus: list[tuple[int, ...]] = [(cpu,) for cpu in dealt.api + dealt.detokenizer]
        tok_cpus: list[tuple[int, ...]] = [(cpu,) for cpu in dealt.tokenizer]
        reason = f"pinned to the cores given ({format_cpus(cores or ())})"
    else:
        io, tokenize = detok, tok if detok + tok >= 3 else 0
        if allowed_cpus is not None and io + tokenize > allowed_cpus:
            io, tokenize = _shrink(max(1, allowed_cpus))
        io_cpus, tok_cpus = [()] * io, [()] * tokenize
        reason = "unpinned, too few cores given" if dealt.warning else "unpinned, no cores given"
    all_stages = tuple(stage for stage in STAGES if stage != "tokenize" or not tok_cpus)
    specs = [CoreSpec(index, cpus, all_stages) for index, cpus in enumerate(io_cpus)]
    specs += [
        CoreSpec(len(io_cpus) + index, cpus, ("tokenize",)) for index, cpus in enumerate(tok_cpus)
    ]
    return CorePlan(
        cores=tuple(specs),
        reason=reason,
        warnings=(dealt.warning,) if dealt.warning else (),
    )


def _shrink(cpus: int) -> tuple[int, int]:
    """(I/O, tokenize) cores on so few CPUs, one of them left to the scheduler."""
    ours = max(1, cpus - 1)
    tokenize = ours // 3
    return ours - tokenize, tokenize
