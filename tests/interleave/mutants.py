"""Copies of the shipped modules with one line changed. Owner: one test."""

from __future__ import annotations

import inspect
import sys
from types import ModuleType
from typing import Any


def mutant(module: ModuleType, *changes: tuple[str, str]) -> Any:
    """The module's source with each `old` replaced by `new`, run as a module of its own.

    Raises AssertionError unless every `old` occurs exactly once: a test of a mutation must not
    pass because the mutation no longer applies.
    """
    source = inspect.getsource(module)
    for old, new in changes:
        count = source.count(old)
        assert count == 1, f"{module.__name__}: {count} places look like {old!r}"
        source = source.replace(old, new)
    name = f"mutant_of_{module.__name__.replace('.', '_')}"
    copy = ModuleType(name)
    sys.modules[name] = copy
    try:
        exec(compile(source, f"<{name}>", "exec"), copy.__dict__)
    finally:
        del sys.modules[name]
    return copy
