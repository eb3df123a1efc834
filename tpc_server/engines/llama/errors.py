"""Errors of the embedded engine. Owner: any thread (names only)."""

from __future__ import annotations


class EngineError(Exception):
    """The engine cannot load or run what it was given; the text says what and why."""


class SettingError(EngineError):
    """It lies in one of its settings: `setting` is the field of LlamaSettings."""

    def __init__(self, setting: str, text: str) -> None:
        super().__init__(f"{setting}: {text}")
        self.setting = setting
        self.text = text
