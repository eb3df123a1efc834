"""Medians and spread over the rounds, and the tables made of them. Owner: stateless."""

from __future__ import annotations

from typing import Any

from perf.harness.bench_flags import PEERS
from perf.harness.stats import spread

FIGURES = (
    "frontend_us",
    "frontend_with_calls_us",
    "scheduler_us",
    "system_share",
    "push_step_us",
    "events_per_s",
    "tokens_per_s",
    "bytes_per_event",
    "req_per_s",
    "req_per_s_of_a_core",
    "pss_rest_mb",
    "pss_loaded_mb",
    "client_cpu_share",
    "foreign_cpu_share",
    "stolen_share",
)
LATENCIES = ("p50", "p99")


def summarise(records: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """workload -> peer -> figure -> {median, min, max, rounds}; records with problems are left out.

    Beside the figures: `rounds_invalid`, and `ratio_rust` / `ratio_floor` of the main figure,
    taken round by round so that what changes between rounds cancels.
    """
    summary: dict[str, dict[str, dict[str, Any]]] = {}
    for workload in dict.fromkeys(record["workload"] for record in records):
        mine = [record for record in records if record["workload"] == workload]
        for peer in dict.fromkeys(record["peer"] for record in mine):
            of_peer = [record for record in mine if record["peer"] == peer]
            valid = [record for record in of_peer if not record["problems"]]
            row: dict[str, Any] = {"rounds_invalid": len(of_peer) - len(valid)}
            for name in FIGURES:
                row[name] = spread(record.get(name) for record in valid)
            for name in LATENCIES:
                row[f"latency_{name}_us"] = spread(
                    record["latency_us"].get(name) for record in valid
                )
            for base in ("rust", "floor"):
                row[f"ratio_{base}"] = spread(ratios(valid, mine, base, main_figure(mine)))
            summary.setdefault(workload, {})[peer] = row
    return summary


def main_figure(records: list[dict[str, Any]]) -> str:
    """What the ratios are of: requests/s for unary, CPU per token otherwise."""
    return "req_per_s" if any("req_per_s" in record for record in records) else "frontend_us"


def ratios(
    valid: list[dict[str, Any]], records: list[dict[str, Any]], base: str, figure: str
) -> list[float]:
    """This peer's figure over that of `base` in the same round."""
    by_round = {
        record["round"]: record[figure]
        for record in records
        if record["peer"] == base and not record["problems"]
    }
    return [
        record[figure] / by_round[record["round"]]
        for record in valid
        if record["round"] in by_round
    ]


def cell(value: dict[str, Any] | None, digits: int = 1, scale: float = 1.0) -> str:
    """`median (min to max)`, or a dash."""
    if value is None:
        return "-"
    middle, low, high = (value[name] * scale for name in ("median", "min", "max"))
    if value["rounds"] == 1:
        return f"{middle:.{digits}f}"
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def markdown(report: dict[str, Any]) -> str:
    """One table per workload, with the machine above."""
    lines = [machine_line(report), ""]
    for title, peers in report["summary"].items():
        unary = any(row["req_per_s"] for row in peers.values())
        lines += [f"**{report['titles'][title]}**", ""]
        lines += unary_table(peers) if unary else stream_table(peers)
        lines.append("")
    return "\n".join(lines)


def machine_line(report: dict[str, Any]) -> str:
    machine, python = report["machine"], report["python"]["tpc"]
    build = "PGO" if python["pgo"] else "no PGO"
    return (
        f"{machine['cpu']}, {len(machine['allowed_cpus'])} CPUs, Linux {machine['kernel']}; "
        f"CPython {python['version']}{'t' if python['free_threaded'] else ''} ({build}); "
        f"commit {report['commit']}; {report['date']}; {report['rounds']} rounds, "
        "median (min to max)"
    )


def stream_table(peers: dict[str, dict[str, Any]]) -> list[str]:
    lines = [
        "| frontend | CPU µs/token | ÷ Rust | ÷ floor | with calls µs | tokens/s | events/s "
        "| added latency p50 ms | p99 ms | push of a step µs | PSS MB |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for peer, row in peers.items():
        cells = [
            name_of(peer, row),
            cell(row["frontend_us"]),
            cell(row["ratio_rust"], 2),
            cell(row["ratio_floor"], 2),
            cell(row["frontend_with_calls_us"]),
            cell(row["tokens_per_s"], 0),
            cell(row["events_per_s"], 0),
            cell(row["latency_p50_us"], 2, 1e-3),
            cell(row["latency_p99_us"], 2, 1e-3),
            cell(row["push_step_us"], 0),
            cell(row["pss_rest_mb"], 0),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def unary_table(peers: dict[str, dict[str, Any]]) -> list[str]:
    lines = [
        "| frontend | req/s | ÷ Rust | CPU µs/request | with calls µs | latency p50 ms | p99 ms "
        "| PSS loaded MB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for peer, row in peers.items():
        cells = [
            name_of(peer, row),
            cell(row["req_per_s"], 0),
            cell(row["ratio_rust"], 2),
            cell(row["frontend_us"]),
            cell(row["frontend_with_calls_us"]),
            cell(row["latency_p50_us"], 2, 1e-3),
            cell(row["latency_p99_us"], 2, 1e-3),
            cell(row["pss_loaded_mb"], 0),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def name_of(peer: str, row: dict[str, Any]) -> str:
    bad = row["rounds_invalid"]
    return PEERS[peer] + (f" **({bad} rounds invalid)**" if bad else "")
