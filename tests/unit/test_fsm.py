"""The generic machine: compiling, errors, drawing. Owner: pytest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tpc_server import fsm
from tpc_server.fsm import ANY, ILLEGAL, IllegalTransition, Machine, compile, to_mermaid, to_table

DOC = Path(__file__).parents[2] / "docs" / "FSM.md"
DOOR = Machine(
    "door",
    ("OPEN", "SHUT", "GONE"),
    ("PUSH", "PULL", "BREAK"),
    ((0, 0, 1), (1, 1, 0), (1, 0, 1), (ANY, 2, 2)),
    0,
    (2,),
)


def test_table_of_a_small_machine() -> None:
    no = ILLEGAL
    assert DOOR.compile() == bytes([1, no, 2, 1, 0, 2, no, no, no])


def test_each_core_gets_a_table_of_its_own() -> None:
    assert DOOR.compile() is not DOOR.compile()


def test_a_wildcard_yields_to_an_edge_of_the_states_own_wherever_it_stands() -> None:
    own = (0, 0, 1)
    wild = (ANY, 0, 2)
    for edges in ((own, wild), (wild, own)):
        assert compile(edges, 3, 1, (2,)) == bytes([1, 2, ILLEGAL])


def test_a_wildcard_reaches_every_state_when_none_is_terminal() -> None:
    assert compile([(ANY, 0, 0)], 3, 1) == bytes([0, 0, 0])


@pytest.mark.parametrize(
    ("edges", "states", "events", "terminal", "says"),
    [
        ([(0, 0, 1), (0, 0, 1)], 2, 1, (), "already"),
        ([(ANY, 0, 1), (ANY, 0, 0)], 2, 1, (), "wildcard edge already"),
        ([(1, 0, 0)], 2, 1, (1,), "leaves a terminal"),
        ([(2, 0, 0)], 2, 1, (), "out of range"),
        ([(-2, 0, 0)], 2, 1, (), "out of range"),
        ([(0, 1, 0)], 2, 1, (), "out of range"),
        ([(0, -1, 0)], 2, 1, (), "out of range"),
        ([(0, 0, 2)], 2, 1, (), "out of range"),
        ([(0, 0, ANY)], 2, 1, (), "out of range"),
        ([], 2, 1, (2,), "terminal states [2]"),
        ([], 255, 1, (), "fit no table"),
        ([], 0, 1, (), "fit no table"),
        ([], 1, 0, (), "fit no table"),
    ],
)
def test_wrong_edge_lists_are_refused(
    edges: list[fsm.Edge], states: int, events: int, terminal: tuple[int, ...], says: str
) -> None:
    with pytest.raises(ValueError) as caught:
        compile(edges, states, events, terminal)
    assert says in str(caught.value)


def test_254_states_are_fine() -> None:
    table = compile([(253, 0, 253)], 254, 1)
    assert table[253] == 253
    assert table[252] == ILLEGAL


def test_the_error_names_machine_event_and_state() -> None:
    error = IllegalTransition(DOOR, 2, 1)
    assert str(error) == "door: event PULL is illegal in state GONE"
    assert (error.machine, error.state, error.event) == (DOOR, 2, 1)
    assert "state #9" in str(IllegalTransition(DOOR, 9, 0))


def test_drawing() -> None:
    assert to_mermaid(DOOR) == (
        "stateDiagram-v2\n"
        '    state "any state but the last ones" as ANY\n'
        "    [*] --> OPEN\n"
        "    OPEN --> SHUT: PUSH\n"
        "    SHUT --> OPEN: PULL\n"
        "    SHUT --> SHUT: PUSH\n"
        "    ANY --> GONE: BREAK\n"
        "    GONE --> [*]"
    )
    assert to_table(DOOR).splitlines()[2:] == [
        "| **OPEN** | SHUT | . | GONE |",
        "| **SHUT** | SHUT | OPEN | GONE |",
        "| **GONE** | . | . | . |",
    ]


def test_the_page_in_docs_is_fresh() -> None:
    assert DOC.read_text(encoding="utf-8") == fsm.document(), (
        "run: python -m tpc_server.fsm > docs/FSM.md"
    )


def test_the_command_prints_the_page() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tpc_server.fsm"], capture_output=True, timeout=60, check=True
    )
    assert done.stdout.decode() == fsm.document()
