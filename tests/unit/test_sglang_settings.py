"""`TPC_*` variables become options, and are documented. Owner: pytest."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import pytest

from tpc_server import modes
from tpc_server.config import Options
from tpc_server.integrations.sglang import refusals, settings
from tpc_server.integrations.sglang.problem import Problem

PAGE = Path(__file__).parents[2] / "docs" / "SGLANG.md"
GOOD = {
    "TPC_MAX_CONNECTIONS": ("7", 7),
    "TPC_MAX_BODY_SIZE": ("2M", 2 << 20),
    "TPC_MAX_HEAD_SIZE": ("8k", 8 << 10),
    "TPC_HEADER_TIMEOUT": ("1.5", 1.5),
    "TPC_BODY_TIMEOUT": ("2", 2.0),
    "TPC_KEEP_ALIVE_TIMEOUT": ("3", 3.0),
    "TPC_DRAIN_TIMEOUT": ("6", 6.0),
    "TPC_RETIRE_TIMEOUT": ("7.5", 7.5),
    "TPC_STALL_TIMEOUT": ("8", 8.0),
    "TPC_LINGER": ("0", 0.0),
    "TPC_MAX_LOGPROBS": ("0", 0),
    "TPC_MAX_LOGPROB_ENTRIES": ("9", 9),
    "TPC_ACCESS_LOG": ("1", True),
    "TPC_REQUEST_ID_HEADERS": ("1", True),
    "TPC_WRITE_TIMEOUT": ("4", 4.0),
    "TPC_STREAM_BUFFER": ("65536", 65536),
    "TPC_SSE_KEEP_ALIVE": ("5", 5.0),
    "TPC_SPIN_US": ("20", 20.0),
    "TPC_SOCKET_BUFFER": ("4k", 4096),
    "TPC_BACKLOG": ("16", 16),
    "TPC_LOG_FORMAT": ("json", "json"),
    "TPC_CORS_ALLOW_ORIGIN": ("https://a.b, https://c.d", ("https://a.b", "https://c.d")),
    "TPC_ATTACH": ("/run/x", "/run/x"),
}


def test_every_variable_sets_its_option():
    assert set(GOOD) == {setting.variable for setting in settings.SETTINGS}
    names = {field.name for field in fields(Options)}
    for setting in settings.SETTINGS:
        assert setting.option in names
        text, value = GOOD[setting.variable]
        found = settings.options(None, {setting.variable: text})
        assert getattr(found, setting.option) == value
        assert getattr(settings.options(None, {setting.variable: ""}), setting.option) == getattr(
            Options(), setting.option
        )


@pytest.mark.parametrize(
    "variable", [*sorted({*GOOD} - {"TPC_ATTACH"}), "TPC_FRONTENDS", "TPC_MODE"]
)
def test_a_bad_value_names_its_variable(variable):
    with pytest.raises(Problem, match=variable):
        settings.options(None, {variable: "-?"})
        settings.drain_seconds({variable: "-?"})
        settings.check_together({variable: "-?"})


def test_every_option_has_a_variable_or_a_reason():
    names = {field.name for field in fields(Options)}
    assert {setting.option for setting in settings.SETTINGS} | set(settings.ABSENT) == names
    assert not {setting.option for setting in settings.SETTINGS} & set(settings.ABSENT)


@pytest.mark.parametrize(
    ("gil", "variables", "words"),
    [
        (False, {"TPC_FRONTENDS": "2"}, "TPC_FRONTENDS=2: .* TPC_MODE=sidecar"),
        (False, {"TPC_FRONTENDS": "0", "TPC_ATTACH": "/run/x"}, "TPC_ATTACH=/run/x: .* threads"),
        (False, {"TPC_ATTACH": "/run/x", "TPC_MODE": "in-process"}, "TPC_ATTACH=/run/x: "),
        (False, {"TPC_FRONTENDS": "0", "TPC_MODE": "sidecar"}, "TPC_FRONTENDS=0: nobody"),
        (True, {"TPC_FRONTENDS": "0"}, "TPC_FRONTENDS=0: nobody"),
        (True, {"TPC_MODE": "in-process"}, "TPC_MODE=in-process: this Python has a GIL"),
        (True, {"TPC_MODE": "both"}, "TPC_MODE=both: must be in-process or sidecar"),
    ],
)
def test_what_cannot_be_had_together(monkeypatch, gil, variables, words):
    monkeypatch.setattr(modes, "has_gil", lambda: gil)
    with pytest.raises(Problem, match=words) as found:
        settings.check_together(variables)
    assert "\n" not in str(found.value)


def test_what_can_be_had_together(monkeypatch):
    for gil in (False, True):
        monkeypatch.setattr(modes, "has_gil", lambda gil=gil: gil)
        for variables in (
            {},
            {"TPC_FRONTENDS": "2", "TPC_MODE": "sidecar"},
            {"TPC_FRONTENDS": "0", "TPC_ATTACH": "/run/x", "TPC_MODE": "sidecar"},
            {"TPC_ATTACH": "/run/x", "TPC_MODE": "sidecar"},
        ):
            settings.check_together(variables)


def test_the_drain():
    assert settings.drain_seconds({}) == Options().drain_s
    assert settings.drain_seconds({"TPC_DRAIN_TIMEOUT": "0"}) == 0


def test_how_many_processes():
    assert settings.frontends({}) == 1 and settings.frontends({"TPC_FRONTENDS": "3"}) == 3


def test_flags_of_sglang():
    args = SimpleNamespace(
        enable_cache_report=True, grammar_backend="none", api_key="a", fastapi_root_path="/x/",
        enable_streaming_session=True, enable_custom_logit_processor=True,
    )  # fmt: skip
    found = settings.options(args, {})
    assert found.streaming_session and found.custom_logit_processor
    assert found.root_path == "/x"
    assert found.cache_report and not found.grammars and found.api_keys == ("a",)
    with pytest.raises(Problem, match="--admin-api-key"):
        settings.options(SimpleNamespace(admin_api_key="ä"), {})


def test_variables_of_sglang(monkeypatch):
    def found():
        options = settings.options(SimpleNamespace(), {})
        return options.max_batch, options.idle_timeout_s

    assert found() == (4096, 75.0)
    monkeypatch.setenv("SGLANG_MAX_BATCH_REQS_PER_HTTP_REQ", "7")
    monkeypatch.setenv("SGLANG_TIMEOUT_KEEP_ALIVE", "11")
    assert found() == (7, 11.0)
    given = settings.options(SimpleNamespace(), {"TPC_KEEP_ALIVE_TIMEOUT": "3"})
    assert given.idle_timeout_s == 3  # ours before theirs
    for text in ("0", "-1", "x", "nan"):
        monkeypatch.setenv("SGLANG_MAX_BATCH_REQS_PER_HTTP_REQ", text)
        monkeypatch.setenv("SGLANG_TIMEOUT_KEEP_ALIVE", text)
        assert found() == (4096, 75.0)


def test_the_page_lists_flags_without_effect():
    (row,) = [x for x in PAGE.read_text("utf-8").splitlines() if "without effect" in x]
    named = set(re.findall("`--([a-z0-9-]+)`", row))
    assert named == {name.replace("_", "-") for name in refusals._PYTHONS}


def test_the_page_lists_them():
    page = PAGE.read_text(encoding="utf-8")
    for setting in (*settings.SETTINGS, settings.FRONTENDS, settings.MODE):
        assert f"| `{setting.variable}` | {setting.kind} | {setting.about} |" in page
