"""The request and the connection machine, over the whole product of states and events.

Owner: pytest. ``EXPECTED`` says every legal pair again, by name and without wildcards: what is not
there must be illegal.
"""

from __future__ import annotations

from types import ModuleType

import pytest

from tpc_server import connection, request
from tpc_server.fsm import ANY, ILLEGAL, IllegalTransition, Machine

REQUEST_EXPECTED = {
    "RECEIVED": {"ACCEPT": "TOKENIZING", "ABORT": "ABORTED", "FAIL": "FAILED"},
    "TOKENIZING": {"ENCODED": "QUEUED", "ABORT": "ABORTED", "FAIL": "FAILED"},
    "QUEUED": {"CHUNK": "DECODING", "FINISH": "FINISHED", "ABORT": "ABORTED", "FAIL": "FAILED"},
    "DECODING": {"CHUNK": "DECODING", "FINISH": "FINISHED", "ABORT": "ABORTED", "FAIL": "FAILED"},
    "FINISHED": {},
    "ABORTED": {},
    "FAILED": {},
}
_BROKEN = {"ERROR": "CLOSED", "RESET": "CLOSED"}
CONNECTION_EXPECTED = {
    "OPEN_IDLE": {
        "BYTES": "READING",
        "PEER_EOF": "DRAINING",
        "IDLE_TIMEOUT": "DRAINING",
        "SHUTDOWN": "DRAINING",
        **_BROKEN,
    },
    "READING": {
        "BYTES": "READING",
        "REQUEST": "WAITING",
        "PEER_EOF": "DRAINING",
        **_BROKEN,
    },
    "WAITING": {
        "BYTES": "WAITING",
        "ANSWERED": "OPEN_IDLE",
        "ANSWERED_CLOSE": "DRAINING",
        "PEER_EOF": "HALF_CLOSED",
        **_BROKEN,
    },
    "DRAINING": {
        "BYTES": "DRAINING",
        "PEER_EOF": "DRAINING",
        "FLUSHED": "CLOSED",
        "IDLE_TIMEOUT": "CLOSED",
        **_BROKEN,
    },
    "HALF_CLOSED": {
        "REQUEST": "HALF_CLOSED",
        "ANSWERED": "HALF_CLOSED",
        "ANSWERED_CLOSE": "DRAINING",
        "PEER_EOF": "DRAINING",
        **_BROKEN,
    },
    "CLOSED": {},
}
BOTH = pytest.mark.parametrize(
    ("module", "expected"),
    [(request, REQUEST_EXPECTED), (connection, CONNECTION_EXPECTED)],
    ids=["request", "connection"],
)


def run(module: ModuleType, path: str, state: int | None = None) -> str:
    """The state's name after the events of ``path`` (names, spaces between), as a core steps."""
    machine: Machine = module.MACHINE
    table = machine.compile()
    state = machine.initial if state is None else state
    for name in path.split():
        event = machine.events.index(name)
        following = table[state * module.N_EVENTS + event]
        if following == ILLEGAL:
            raise IllegalTransition(machine, state, event)
        state = following
    return machine.states[state]


def successors(machine: Machine) -> dict[int, set[int]]:
    table = machine.compile()
    width = len(machine.events)
    return {
        state: set(table[state * width : (state + 1) * width]) - {ILLEGAL}
        for state in range(len(machine.states))
    }


def closure(start: int, edges: dict[int, set[int]]) -> set[int]:
    seen = {start}
    todo = [start]
    while todo:
        for state in edges[todo.pop()] - seen:
            seen.add(state)
            todo.append(state)
    return seen


@BOTH
def test_the_whole_product(module: ModuleType, expected: dict[str, dict[str, str]]) -> None:
    machine: Machine = module.MACHINE
    assert set(expected) == set(machine.states)
    for state, name in enumerate(machine.states):
        for event in machine.events:
            following = expected[name].get(event)
            if following is None:
                with pytest.raises(IllegalTransition) as caught:
                    run(module, event, state)
                assert name in str(caught.value)
                assert event in str(caught.value)
            else:
                assert run(module, event, state) == following


@BOTH
def test_constants_are_the_names(module: ModuleType, expected: object) -> None:
    assert len(module.EVENTS) == module.N_EVENTS
    assert module.MACHINE.events is module.EVENTS
    for names in (module.STATES, module.EVENTS):
        assert len(set(names)) == len(names)
        assert [getattr(module, name) for name in names] == list(range(len(names)))


@BOTH
def test_terminal_states_have_no_way_out(module: ModuleType, expected: object) -> None:
    edges = successors(module.MACHINE)
    assert {state for state, following in edges.items() if not following} == set(module.TERMINAL)


@BOTH
def test_every_state_is_reached(module: ModuleType, expected: object) -> None:
    machine: Machine = module.MACHINE
    assert closure(machine.initial, successors(machine)) == set(range(len(machine.states)))


@BOTH
def test_every_state_can_end(module: ModuleType, expected: object) -> None:
    edges = successors(module.MACHINE)
    for state in edges:
        assert closure(state, edges) & set(module.TERMINAL)


@BOTH
def test_every_edge_is_used(module: ModuleType, expected: object) -> None:
    """A wildcard that every state shadows, or an event nobody takes, would be dead text."""
    machine: Machine = module.MACHINE
    assert {event for _, event, _ in machine.edges} == set(range(len(machine.events)))
    own = {(state, event) for state, event, _ in machine.edges if state != ANY}
    alive = set(range(len(machine.states))) - set(machine.terminal)
    for state, event, _ in machine.edges:
        assert state != ANY or any((one, event) not in own for one in alive)


def test_a_request_ends_by_finish_only_after_it_was_queued() -> None:
    edges = {(s, e) for s, e, following in request.EDGES if following == request.FINISHED}
    assert edges == {(request.QUEUED, request.FINISH), (request.DECODING, request.FINISH)}


@pytest.mark.parametrize(
    ("path", "end"),
    [
        ("ACCEPT ENCODED CHUNK CHUNK FINISH", "FINISHED"),
        ("ACCEPT ENCODED FINISH", "FINISHED"),
        ("FAIL", "FAILED"),
        ("ACCEPT FAIL", "FAILED"),
        ("ACCEPT ABORT", "ABORTED"),
        ("ACCEPT ENCODED CHUNK ABORT", "ABORTED"),
    ],
)
def test_lives_of_a_request(path: str, end: str) -> None:
    assert run(request, path) == end


@pytest.mark.parametrize("path", ["ACCEPT ENCODED FINISH CHUNK", "ABORT ABORT", "ABORT FAIL"])
def test_a_request_ends_once(path: str) -> None:
    with pytest.raises(IllegalTransition):
        run(request, path)


@pytest.mark.parametrize(
    ("path", "end"),
    [
        # keep-alive, then pipelining: the second request's bytes come early and are fed in turn
        ("BYTES REQUEST ANSWERED BYTES BYTES REQUEST ANSWERED", "OPEN_IDLE"),
        ("BYTES REQUEST BYTES BYTES ANSWERED BYTES REQUEST", "WAITING"),
        ("BYTES REQUEST ANSWERED_CLOSE FLUSHED", "CLOSED"),
        # the peer half-closes behind two pipelined requests: both are answered
        ("BYTES REQUEST PEER_EOF ANSWERED REQUEST ANSWERED_CLOSE FLUSHED", "CLOSED"),
        # ... or behind one and a half
        ("BYTES REQUEST PEER_EOF ANSWERED PEER_EOF FLUSHED", "CLOSED"),
        ("BYTES REQUEST PEER_EOF RESET", "CLOSED"),
        ("BYTES PEER_EOF FLUSHED", "CLOSED"),
        ("IDLE_TIMEOUT FLUSHED", "CLOSED"),
        ("BYTES REQUEST ANSWERED_CLOSE BYTES IDLE_TIMEOUT", "CLOSED"),
        ("BYTES REQUEST ERROR", "CLOSED"),
        ("SHUTDOWN FLUSHED", "CLOSED"),
    ],
)
def test_lives_of_a_connection(path: str, end: str) -> None:
    assert run(connection, path) == end


@pytest.mark.parametrize(
    "path",
    [
        "BYTES REQUEST REQUEST",  # a second request before the first was answered
        "BYTES ANSWERED",  # an answer to nothing
        "BYTES REQUEST IDLE_TIMEOUT",  # a generation may take long
        "BYTES REQUEST PEER_EOF BYTES",  # nothing comes after FIN
        "BYTES REQUEST ANSWERED_CLOSE ANSWERED",
        "RESET ERROR",
    ],
)
def test_what_a_connection_must_not_do(path: str) -> None:
    with pytest.raises(IllegalTransition):
        run(connection, path)


def test_the_coupling_names_real_states_and_legal_events() -> None:
    modules = {"request": request, "connection": connection}
    answering = {"WAITING", "HALF_CLOSED"}
    for when, state, then, events in connection.COUPLING:
        assert state in modules[when].STATES
        for event in events.split(", "):
            assert event in modules[then].EVENTS
            if then == "connection":
                for name in answering:
                    assert run(connection, event, connection.STATES.index(name))
    ended = {state for when, state, _, _ in connection.COUPLING if when == "request"}
    assert ended == {request.STATES[state] for state in request.TERMINAL}
