"""How long and with which seed. Owner: pytest."""

from __future__ import annotations

import os
import random

import pytest


@pytest.fixture(scope="session")
def stress_seconds(request: pytest.FixtureRequest) -> float:
    """Length of all whole-server runs together: --stress-seconds, TPC_STRESS_SECONDS, 60."""
    given = request.config.getoption("--stress-seconds", default=None)
    return float(given or os.environ.get("TPC_STRESS_SECONDS") or 60)


@pytest.fixture(scope="session")
def stress_seed() -> str:
    """TPC_SEED, or a new one; every test prints it."""
    return os.environ.get("TPC_SEED") or f"{random.SystemRandom().getrandbits(32):08x}"
