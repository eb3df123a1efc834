"""The programs and calls in README.md and docs/SYNTHETIC.md run as they are. Owner: pytest."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import tiny_tokenizer
from tests.e2e.known_bugs import write_model
from tests.gil_env import clean_env, gil_env
from tests.http_client import Client, call

ROOT = Path(__file__).parents[2]


class Example:
    """A program out of a page, with a small model and a port of its own."""

    def __init__(self, page: str, holding: str, folder: Path) -> None:
        text = (ROOT / page).read_text(encoding="utf-8")
        (code,) = [c for c in re.findall(r"```python\n(.*?)```", text, re.S) if holding in c]
        code = textwrap.dedent(code)
        assert code.count("port=30000") == code.count("ServerArgs(") == 1
        tiny_tokenizer.write(folder / "a" / "folder")
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            self.address = ("127.0.0.1", int(sock.getsockname()[1]))
        (folder / "program.py").write_text(code.replace("30000", str(self.address[1])))
        self.process = subprocess.Popen(
            [sys.executable, "program.py"], cwd=folder, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip

    def await_ready(self) -> None:
        """Its warm-up is answered, or the program has ended."""
        while self.process.poll() is None:
            try:
                if call(self.address, "GET", "/ready").status == 200:
                    return
            except OSError:
                pass
            time.sleep(0.02)
        raise AssertionError(self.process.communicate()[1])


@pytest.fixture
def example(tmp_path) -> Iterator[Example]:
    made: list[Example] = []

    def begin(page: str, holding: str) -> Example:
        made.append(Example(page, holding, tmp_path))
        return made[-1]

    yield begin  # type: ignore[misc]
    for one in made:
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate(timeout=30)


def wanting(tokens: int) -> dict[str, Any]:
    return {"text": "abc", "sampling_params": {"max_new_tokens": tokens}}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_scheduler_of_the_readme(example, number):
    one = example("README.md", "wait_request")
    one.await_ready()
    with Client(one.address) as client:
        answer = client.call("POST", "/generate", wanting(5)).json()
        assert answer["text"] == "abcab"
        assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 5}
        assert client.call("POST", "/generate", wanting(0)).json()["text"] == ""
        assert client.call("POST", "/flush_cache").status == 200
        assert client.call("GET", "/server_info").status == 200
        assert client.call("GET", "/health_generate").status == 200
        assert client.call("POST", "/weights_checker").status == 400
        client.request("POST", "/generate", {**wanting(30000), "rid": "r", "stream": True})
        client.head()
        client.chunk()
        assert call(one.address, "POST", "/abort_request", {"rid": "r"}).status == 200
        text = b""
        while piece := client.chunk():
            text += piece
        assert b'"type":"abort"' in text and text.endswith(b"data: [DONE]\n\n")
    one.process.send_signal(number)
    out, err = one.process.communicate(timeout=60)
    assert one.process.returncode == 0 and "Traceback" not in err
    assert out == f"serving on http://127.0.0.1:{one.address[1]}\n"


def test_the_script_of_the_synthetic_page(example):
    one = example("docs/SYNTHETIC.md", "SyntheticSettings(")
    one.await_ready()
    answer = call(one.address, "POST", "/generate", {"text": "Hello"}).json()
    assert answer["output_ids"] == [11, 12, 13]
    emoji = {"text": "x", "rid": "emoji"}
    assert call(one.address, "POST", "/generate", emoji).json()["text"] == "\N{PARTY POPPER}"
    _, err = one.process.communicate("\n", timeout=60)
    assert one.process.returncode == 0 and "Traceback" not in err


def said(*_):
    """An answer of any scheduler's."""
    return [([letter], None) for letter in b"Paris"] + [([], {"type": "stop", "matched": None})]


@pytest.fixture
def tour(start, tmp_path):
    """README.md, and a server that has the routes of its tour."""
    run = start(said, model_path=str(write_model(tmp_path / "model")))
    return (ROOT / "README.md").read_text(encoding="utf-8"), run


def test_the_curl_calls_of_the_readme(tour):
    """Each with its body and its headers, as a shell gives them to curl."""
    text, run = tour
    calls = [shlex.split(c.replace("\\\n", " ")) for c in curls(text)]
    assert calls
    for words in calls:
        (url,) = [word for word in words if word.startswith("http://")]
        body = words[words.index("-d") + 1].encode() if "-d" in words else None
        named = [words[k + 1].split(": ", 1) for k, word in enumerate(words) if word == "-H"]
        path = "/" + url.removeprefix("http://").partition("/")[2]
        with Client(run.address) as client:
            client.request("POST" if body else "GET", path, body, dict(named))
            answer = client.answer()
        assert answer.status == 200, (words, answer.body)
        if b'"stream": true' in (body or b""):
            assert answer.events()[-2]["text"] == "Paris"


def curls(text: str) -> list[str]:
    """The commands after a prompt that call a server on this machine, to their closing quote."""
    found = re.findall(r"^\$ (curl [^']*(?:'[^']*'[^']*?)*?-d '[^']*')", text, re.M)
    return [command for command in found if "127.0.0.1" in command]


@pytest.mark.network
@pytest.mark.timeout(300)
def test_the_openai_client_of_the_readme(tour):
    text, run = tour
    (code,) = [c for c in re.findall(r"```python\n(.*?)```", text, re.S) if "import OpenAI" in c]
    assert code.count("127.0.0.1:30000") == 1
    done = subprocess.run(
        [gil_env("openai-client"), "-c", code.replace("30000", str(run.address[1]))],
        capture_output=True, text=True, timeout=120, env=clean_env(), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, streamed = done.stdout.splitlines()
    assert re.fullmatch(r"Paris \d+", first) and streamed == "Paris"


def test_flags_that_pages_name_are_flags():
    """Of the server, the benchmarks or the tests; in the pages on SGLang also of its."""
    declared = set()
    for folder in ("tpc_server", "perf", "tests"):
        for path in (ROOT / folder).rglob("*.py"):
            declared |= set(re.findall(r"[\"'](--[a-z][a-z0-9-]+)[\"'=]", path.read_text("utf-8")))
    pages = ["README.md", *[f"docs/{n}.md" for n in ("METRICS", "SYNTHETIC", "CORES", "BOUNDARY")]]
    for page in pages:
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", (ROOT / page).read_text("utf-8")))
        assert named <= declared, (page, named - declared)
