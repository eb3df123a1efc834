"""The value of --cores. Owner: none, pure functions over frozen data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from tpc_server.affinity.cpulist import MAX_CPU, format_cpus

STAGES: Final = ("ingress", "tokenize", "detok", "egress")

# Every ordered pair of cores has a ring of its own, so memory grows with the square.
MAX_CORES: Final = 256

_FORMS = (
    "use a count (--cores 2), a list (--cores 0,1,2 or 0-3,8; one core alone: 3,) "
    "or stages (--cores ingress=0,1 tokenize=2,3 detok=0,1 egress=0,1)"
)


@dataclass(frozen=True, slots=True)
class CoresSpec:
    """A parsed --cores value; exactly one of the three is set.

    count   so many cores, placed by the plan
    cores   logical core numbers, one core each, in the order given
    stages  (stage, logical core numbers in the order given) for each stage named
    """

    count: int | None = None
    cores: tuple[int, ...] = ()
    stages: tuple[tuple[str, tuple[int, ...]], ...] = ()

    def __str__(self) -> str:
        if self.count is not None:
            return str(self.count)
        if self.cores:
            text = ",".join(map(str, self.cores))
            return text if len(self.cores) > 1 else text + ","
        return " ".join(f"{name}={','.join(map(str, cores))}" for name, cores in self.stages)


def parse_cores(values: str | Iterable[str]) -> CoresSpec:
    """What --cores was given, as argparse's nargs="+" collects it (or one string).

    Raises ValueError with a text that names the flag and what was wrong.
    """
    words = values.split() if isinstance(values, str) else " ".join(values).split()
    if not words:
        raise ValueError(f"--cores: no value; {_FORMS}")
    if any("=" in word for word in words):
        return CoresSpec(stages=_parse_stages(words))
    if len(words) > 1:
        raise ValueError(f"--cores: {' '.join(words)!r} is more than one value; {_FORMS}")
    word = words[0]
    if word.isascii() and word.isdecimal():
        count = int(word)
        if not 1 <= count <= MAX_CORES:
            raise ValueError(f"--cores: {count} cores; the count goes from 1 to {MAX_CORES}")
        return CoresSpec(count=count)
    return CoresSpec(cores=_parse_list(word, word))


def refuse_missing_cpus(spec: CoresSpec, allowed: Sequence[int]) -> None:
    """Raises ValueError for a list with CPUs that this process may not use.

    In a map the numbers are logical, so that any layout can be tried on a small machine.
    """
    missing = [core for core in spec.cores if core not in allowed]
    if missing:
        raise ValueError(
            f"--cores: no CPU {', '.join(map(str, missing))} here, this process may use "
            f"{format_cpus(allowed)}; for several cores on one CPU give a count (--cores "
            f"{len(spec.cores)}) or stages"
        )


def _parse_stages(words: Sequence[str]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    stages: dict[str, tuple[int, ...]] = {}
    for word in words:
        name, equals, listed = word.partition("=")
        if not equals:
            raise ValueError(f"--cores: {word!r} stands between stages without one; {_FORMS}")
        if name not in STAGES:
            raise ValueError(f"--cores: no stage {name!r}; the stages are {', '.join(STAGES)}")
        if name in stages:
            raise ValueError(f"--cores: stage {name} is given twice")
        stages[name] = _parse_list(listed, word)
    if len({core for cores in stages.values() for core in cores}) > MAX_CORES:
        raise ValueError(f"--cores: more than {MAX_CORES} cores")
    return tuple(stages.items())


def _parse_list(listed: str, word: str) -> tuple[int, ...]:
    cores: list[int] = []
    # One comma may close the list: "3," is how one core by number differs from a count.
    for part in listed.removesuffix(",").split(","):
        low, dash, high = part.partition("-")
        if not _is_number(low) or (dash and not _is_number(high)):
            raise ValueError(f"--cores: {part!r} in {word!r} is no core number; {_FORMS}")
        first, last = int(low), int(high) if dash else int(low)
        if last > MAX_CPU or last < first:
            raise ValueError(f"--cores: {part!r} in {word!r} is no range of cores 0 to {MAX_CPU}")
        for core in range(first, last + 1):
            if core in cores:
                raise ValueError(f"--cores: core {core} is listed twice in {word!r}")
            cores.append(core)
            if len(cores) > MAX_CORES:
                raise ValueError(f"--cores: {word!r} has more than {MAX_CORES} cores")
    return tuple(cores)


def _is_number(text: str) -> bool:
    # int() would also take "+1", "1_0" and other scripts' digits.
    return text.isascii() and text.isdecimal() and len(text) <= 6
