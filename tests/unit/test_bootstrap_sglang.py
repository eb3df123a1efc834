"""What the doctor says of an SGLang beside us. Owner: pytest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.bootstrap_fakes import fake_python
from tpc_server.bootstrap import sglang
from tpc_server.integrations.sglang import OURS, THEIRS

ROOT = Path(__file__).resolve().parents[2]
ASKED = {"SGLANG_FRONTEND": "tpc"}


def test_nothing_where_there_is_none():
    assert sglang.rows({}, "") == [] and sglang.fault({}) == ""


def test_a_plugin_list_that_leaves_us_out():
    env = {**ASKED, "SGLANG_PLUGINS": "one, other"}
    shown = dict(sglang.rows(env, "0.5.23"))
    assert shown["SGLang"] == "0.5.23"
    assert "leaves us out" in shown["SGLANG_PLUGINS"] and "leaves us out" in sglang.fault(env)
    env["SGLANG_PLUGINS"] = "one, tpc"
    assert dict(sglang.rows(env, "0.5.23"))["SGLANG_PLUGINS"] == "one, tpc"
    assert sglang.fault(env) == ""
    assert sglang.fault({"SGLANG_PLUGINS": "one"}) == ""  # we are not asked for


def test_what_else_would_go_wrong(monkeypatch):
    assert [sglang.fault({"SGLANG_FRONTEND": v}) for v in ("", "0", "Rust", "python")] == [""] * 4
    assert "SGLANG_FRONTEND=tcp is no frontend" in sglang.fault({"SGLANG_FRONTEND": "tcp"})
    assert set(sglang.THEIRS) == set(THEIRS) and sglang.PLUGIN == OURS
    monkeypatch.setattr(sglang, "_entry", lambda: False)
    assert sglang.fault(ASKED) == ""  # there is no SGLang here
    monkeypatch.setattr(sglang, "installed", lambda: "0.5.23")
    assert "install this package into its environment" in sglang.fault(ASKED)
    assert sglang.fault({}) == ""


def test_another_version_and_no_plugin():
    shown = dict(sglang.rows(ASKED, "9.9"))
    assert shown["SGLang"] == "9.9 (tested with 0.5.23)"
    assert ("plugin" in shown) == (not sglang._entry())
    assert "not set" in dict(sglang.rows({}, "0.5.23"))["SGLANG_FRONTEND"]


def test_the_doctor_tells(tmp_path):
    fake_python(tmp_path / "python3.13t", version=[3, 13, 5])
    env = {
        "PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": str(ROOT),
        "XDG_CACHE_HOME": str(tmp_path / "cache"), **ASKED, "SGLANG_PLUGINS": "other",
    }  # fmt: skip
    argv = [sys.executable, "-m", "tpc_server.bootstrap", "doctor"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 1
    assert "other: leaves us out" in done.stdout, done.stdout + done.stderr
    assert os.path.isdir(tmp_path / "cache")
