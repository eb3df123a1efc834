"""State machines as edge lists, compiled to flat tables. Owner: the core that compiled the table.

A machine is declared once, as plain data: names of states and events, and edges
``(state, event, next_state)`` over small ints. Each core compiles its own ``bytes`` from it, on its
own thread, because a table shared by all cores would have its reference count fought over on each
step. In the loop a transition is one index and one comparison:

    following = table[state * N_EVENTS + event]
    if following == ILLEGAL:
        raise IllegalTransition(MACHINE, state, event)

``python -m tpc_server.fsm`` prints docs/FSM.md from the machines this server runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

# As an edge's state: every state that is not terminal and has no edge of its own for the event.
ANY: Final = -1
# What the table holds where there is no edge. No machine has 255 states.
ILLEGAL: Final = 255

Edge = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine's declaration; states and events are indices into their names."""

    name: str
    states: tuple[str, ...]
    events: tuple[str, ...]
    edges: tuple[Edge, ...]
    initial: int
    terminal: tuple[int, ...]

    def compile(self) -> bytes:
        """A new table for the calling core; see ``compile`` for its errors."""
        return compile(self.edges, len(self.states), len(self.events), self.terminal)


class IllegalTransition(Exception):
    """An event that the state has no edge for. The record's state is unchanged."""

    def __init__(self, machine: Machine, state: int, event: int) -> None:
        self.machine = machine
        self.state = state
        self.event = event
        super().__init__(
            f"{machine.name}: event {_name(machine.events, event)} "
            f"is illegal in state {_name(machine.states, state)}"
        )


def compile(
    edges: Iterable[Edge], n_states: int, n_events: int, terminal: Iterable[int] = ()
) -> bytes:
    """The flat table: ``table[state * n_events + event]`` is the next state or ILLEGAL.

    An edge of a state's own goes before the wildcard edge of the same event. Raises ValueError for
    an edge out of range, one out of a terminal state, and two edges for one state and event.
    """
    if not 0 < n_states < ILLEGAL or n_events < 1:
        raise ValueError(f"{n_states} states and {n_events} events fit no table")
    ends = frozenset(terminal)
    if not ends <= frozenset(range(n_states)):
        raise ValueError(f"terminal states {sorted(ends)} of {n_states} states")
    table = bytearray([ILLEGAL]) * (n_states * n_events)
    wild: dict[int, int] = {}
    for state, event, following in edges:
        edge = (state, event, following)
        if not (ANY <= state < n_states and 0 <= event < n_events and 0 <= following < n_states):
            raise ValueError(f"edge {edge} is out of range ({n_states} states, {n_events} events)")
        if state == ANY:
            if event in wild:
                raise ValueError(f"edge {edge}: event {event} has a wildcard edge already")
            wild[event] = following
        elif state in ends:
            raise ValueError(f"edge {edge} leaves a terminal state")
        elif table[state * n_events + event] != ILLEGAL:
            raise ValueError(f"edge {edge}: state {state} has an edge for event {event} already")
        else:
            table[state * n_events + event] = following
    for event, following in wild.items():
        for state in range(n_states):
            if state not in ends and table[state * n_events + event] == ILLEGAL:
                table[state * n_events + event] = following
    return bytes(table)


def to_mermaid(machine: Machine) -> str:
    """A Mermaid state diagram; the edges between two states share one arrow."""
    lines = ["stateDiagram-v2"]
    if any(state == ANY for state, _, _ in machine.edges):
        lines.append('    state "any state but the last ones" as ANY')
    lines.append(f"    [*] --> {machine.states[machine.initial]}")
    arrows: dict[tuple[str, str], list[str]] = {}
    for state, event, following in machine.edges:
        source = "ANY" if state == ANY else machine.states[state]
        arrows.setdefault((source, machine.states[following]), []).append(machine.events[event])
    lines += [f"    {a} --> {b}: {', '.join(events)}" for (a, b), events in arrows.items()]
    lines += [f"    {machine.states[state]} --> [*]" for state in machine.terminal]
    return "\n".join(lines)


def to_table(machine: Machine) -> str:
    """A Markdown table of the whole product: the next state, "." where the event is illegal."""
    table = machine.compile()
    width = len(machine.events)
    lines = ["| | " + " | ".join(machine.events) + " |", "|---" * (width + 1) + "|"]
    for state, name in enumerate(machine.states):
        row = table[state * width : (state + 1) * width]
        cells = ["." if cell == ILLEGAL else machine.states[cell] for cell in row]
        lines.append(f"| **{name}** | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def document() -> str:
    """The text of docs/FSM.md."""
    # Imported here: both modules import this one.
    from tpc_server import connection, request

    parts = [
        "# State machines",
        "Generated by `python -m tpc_server.fsm > docs/FSM.md`; change the edge lists, not this "
        "page. A test compares the two.",
    ]
    for machine, module in ((request.MACHINE, request), (connection.MACHINE, connection)):
        about = (module.__doc__ or "").split("\n\n", 1)
        parts.append(f"## {machine.name.capitalize()}")
        parts += [text.strip() for text in about[1:]]
        parts.append(f"```mermaid\n{to_mermaid(machine)}\n```")
        parts.append(to_table(machine))
    parts.append("## How the two move each other")
    parts.append(
        "\n".join(
            ["| when | reaches | then | gets |", "|---|---|---|---|"]
            + [" | ".join(("", *row, "")).strip() for row in connection.COUPLING]
        )
    )
    return "\n\n".join(parts) + "\n"


def _name(names: tuple[str, ...], index: int) -> str:
    return names[index] if 0 <= index < len(names) else f"#{index}"


if __name__ == "__main__":
    # Through the package: run as a script this file is a second module beside the imported one.
    from tpc_server import fsm

    print(fsm.document(), end="")
