"""In the place of what SGLang's tests import and is not installed. Owner: a process of SGLang's
Python."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import sys
import types
from typing import Any

ABSENT = ("anthropic", "datasets", "tabulate")


def stand_in() -> None:
    """Make imports of them work."""
    for name in ABSENT:
        if importlib.util.find_spec(name) is None:
            sys.modules[name] = Absent(name)
            sys.modules[name].__spec__ = importlib.machinery.ModuleSpec(name, None)


class Absent(types.ModuleType):
    """Has any name; what a test calls does the least."""

    tabulate = staticmethod(lambda *args, **keywords: "")

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return None

    class Anthropic:
        """In the place of Anthropic's own client: says what it is told to, shows the answer."""

        def __init__(self, base_url: str, auth_token: str) -> None:
            self.messages = self
            self._ask = f"{base_url}/v1/messages", {"Authorization": f"Bearer {auth_token}"}

        def create(self, **body: Any) -> Any:
            """POST /v1/messages."""
            import requests

            url, headers = self._ask
            answer = requests.post(url, json=body, headers=headers, timeout=60)
            answer.raise_for_status()
            return json.loads(answer.text, object_hook=lambda one: types.SimpleNamespace(**one))
