"""Draws a results file. Owner: one process; needs matplotlib (the GIL side's environment has it).

usage: plot.py RESULTS.json PICTURE.png
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

# One for every peer of `harness/running.py`.
COLOURS = {
    "tpc": "#1f6fb4",
    "sidecar": "#6fa8dc",
    "rust": "#c8553d",
    "granian": "#8a8f98",
    "granian-loop": "#b9bdc4",
    "floor": "#3f3f3f",
}
LABELS = {
    "tpc": "tpc_server",
    "sidecar": "tpc_server, sidecar",
    "rust": "SGLang Rust",
    "granian": "granian",
    "granian-loop": "granian, one task",
    "floor": "send() floor",
}


def bars(axes: Any, row: dict[str, Any], figure: str, scale: float, digits: int) -> None:
    """One bar per peer at the median, whiskers from minimum to maximum."""
    peers = [peer for peer in row if row[peer].get(figure)]
    values = [row[peer][figure] for peer in peers]
    middle = [value["median"] * scale for value in values]
    below = [(value["median"] - value["min"]) * scale for value in values]
    above = [(value["max"] - value["median"]) * scale for value in values]
    places = range(len(peers))
    axes.bar(places, middle, color=[COLOURS[peer] for peer in peers], width=0.7)
    axes.errorbar(places, middle, yerr=[below, above], fmt="none", ecolor="black", capsize=3)
    for place, height in zip(places, middle, strict=True):
        axes.annotate(
            f"{height:.{digits}f}",
            (place, height),
            xytext=(4, 3),
            textcoords="offset points",
            fontsize=8,
        )
    axes.set_xticks(list(places), [LABELS[peer] for peer in peers], rotation=20, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlim(-0.6, max(len(peers), 3) - 0.4)
    axes.margins(y=0.15)


def draw(report: dict[str, Any], picture: Path) -> None:
    """Two rows: what it costs, and how late it comes; one column per workload."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    workloads = list(report["summary"])
    figure, grid = pyplot.subplots(
        2, len(workloads), figsize=(4.6 * len(workloads), 7), squeeze=False
    )
    for column, name in enumerate(workloads):
        row = report["summary"][name]
        unary = any(values.get("req_per_s") for values in row.values())
        top, low = grid[0][column], grid[1][column]
        if unary:
            bars(top, row, "req_per_s", 1e-3, 1)
            top.set_ylabel("1000 requests/s")
        else:
            bars(top, row, "frontend_us", 1.0, 1)
            top.set_ylabel("frontend CPU, µs per token")
        top.set_title(report["titles"][name].replace(", /generate", ""), fontsize=9)
        bars(low, row, "latency_p99_us", 1e-3, 1)
        low.set_ylabel("latency p99, ms" if unary else "added latency p99, ms")
    machine = report["machine"]
    python = report["python"]["tpc"]
    figure.suptitle(
        f"{machine['cpu']}, {len(machine['allowed_cpus'])} CPUs, Linux {machine['kernel']}, "
        f"CPython {python['version']}{'t' if python['free_threaded'] else ''}, "
        f"{report['io_cores']} I/O core(s), {report['rounds']} rounds: median, min, max",
        fontsize=9,
    )
    figure.tight_layout()
    figure.savefig(picture, dpi=110)


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
