"""How long, with which seed, and the hard end. Owner: pytest."""

from __future__ import annotations

import os
import random

import pytest

# Beside the load itself: clients that wait for the last answer, tables that empty, a shutdown.
_OVERHEAD_S = 300


def seconds_of(config: pytest.Config) -> float:
    """Length of all whole-server runs together: --stress-seconds, TPC_STRESS_SECONDS, 60."""
    given = config.getoption("--stress-seconds")
    return float(given or os.environ.get("TPC_STRESS_SECONDS") or 60)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A hard time-out for each run, longer than everything that is waited for in it."""
    for item in items:
        if "stress_seconds" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(_OVERHEAD_S + seconds_of(config)))


@pytest.fixture(scope="session")
def stress_seconds(request: pytest.FixtureRequest) -> float:
    """Length of all whole-server runs together."""
    return seconds_of(request.config)


@pytest.fixture(scope="session")
def stress_seed() -> str:
    """TPC_SEED, or a new one; every test prints it."""
    return os.environ.get("TPC_SEED") or f"{random.SystemRandom().getrandbits(32):08x}"
