"""A frontend process of an installed package takes nothing of what lies beside. Owner: pytest."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "tpc_server"
pytestmark = pytest.mark.timeout(60)


def test_packages_of_the_schedulers_python_are_not_the_childs(tmp_path):
    site = tmp_path / "site-packages"
    shutil.copytree(PACKAGE, site / "tpc_server", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("argparse", "numpy", "msgpack"):
        (site / f"{name}.py").write_text("raise SystemExit('a package of another Python')\n")
    ask = f"""
import sys
sys.path.append({str(site)!r})
from tpc_server.link.process import child_command
import json, tpc_server
print(json.dumps([tpc_server.__file__, child_command()]))
"""
    argv = [sys.executable, "-P", "-c", ask]
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}  # which may name the checkout
    said = subprocess.run(
        argv, capture_output=True, text=True, cwd=tmp_path, env=env, check=True
    ).stdout
    found, command = json.loads(said)
    assert Path(found).is_relative_to(site)
    # Not even from the folder that it is started in.
    done = subprocess.run(command, capture_output=True, text=True, cwd=site, check=False)
    assert done.returncode == 2 and "--sidecar" in done.stderr, done.stderr
    assert "another Python" not in done.stderr
