"""What is not served is refused by the real SGLang's launch code, before anything starts. Owner:
pytest."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from perf.harness.ports import free_port
from tests.sglang.prepare import CONFIG
from tests.sglang.serving import FLAGS, environ

pytestmark = [pytest.mark.sglang, pytest.mark.network, pytest.mark.timeout(400)]
REFUSER = Path(__file__).with_name("refuser.py")
# What a configuration says is all that is needed of these models.
MODELS: dict[str, dict[str, Any]] = {
    "embeds": {"architectures": ["LlamaEmbeddingModel"]},
    "rewards": {"architectures": ["LlamaForSequenceClassificationWithNormal_Weights"]},
    "sees": {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "model_type": "qwen2_5_vl",
        "vision_config": {
            "depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 32,
            "out_hidden_size": 64,
        },
    },
}  # fmt: skip
TLS = ["--ssl-certfile", "FILE", "--ssl-keyfile", "FILE"]
# name -> (model, flags or the case, the line's beginning)
CASES = {
    "grpc port": ("", ["--grpc-port", "5"], "--grpc-port 5: there is no gRPC here"),
    "grpc mode": ("", ["--grpc-mode"], "--smg-grpc-mode: there is no gRPC here"),
    "smg grpc mode": ("", ["--smg-grpc-mode"], "--smg-grpc-mode: there is no gRPC here"),
    "nodes": (
        "", ["--tp", "2", "--nnodes", "2", "--node-rank", "0", "--dist-init-addr", "127.0.0.1:1"],
        "--nnodes 2: only one node is tested",
    ),
    "watermark": ("", ["--enable-watermark"], "--enable-watermark: "),
    "ray": ("", ["--use-ray"], "--use-ray: "),
    "embeddings by flag": ("", ["--is-embedding"], "--is-embedding: an embedding or reward model"),
    "embedding model": ("embeds", [], "--is-embedding: an embedding or reward model"),
    "reward model": ("rewards", [], "an embedding or reward model: "),
    "encoder": ("sees", ["--encoder-only"], "--encoder-only: "),
    "multimodal model": ("sees", [], "a multimodal model: only text is served"),
    "engine": ("", {"engine": {}}, "SGLANG_FRONTEND=tpc: sgl.Engine has no frontend"),
    "TLS": ("", TLS, "--ssl-certfile …: there is no TLS here yet"),
    "TLS, refreshed": ("", [*TLS, "--enable-ssl-refresh"], "--ssl-certfile …: "),
    "TLS, clients too": ("", [*TLS, "--ssl-ca-certs", "FILE"], "--ssl-certfile …: "),
    "no interpreter": (
        "", {"env": {"TPC_PYTHON": "", "XDG_CACHE_HOME": "FOLDER", "PATH": "/usr/bin:/bin"}},
        "no free-threaded interpreter is prepared, and none is made while SGLang starts: run"
        " `tpc-server setup`",
    ),
    "SGLang has moved": (
        "", {"moved": True},
        "SGLang 0.5.23 is not as 0.5.23, which this tpc_server was made for: callable"
        " RustServer.wait_request: is gone",
    ),
    **{
        f"SGLANG_FRONTEND={value}": (
            "", {"env": {"SGLANG_FRONTEND": value}},
            f"SGLANG_FRONTEND={value}: no such frontend; ",
        )
        for value in ("1", "tpcx", "granian")
    },
    "a bad setting": (
        "", {"env": {"TPC_BACKLOG": "many"}}, "TPC_BACKLOG=many: must be number",
    ),
    "nobody would serve": (
        "", {"env": {"TPC_FRONTENDS": "0"}}, "TPC_FRONTENDS=0: nobody would serve",
    ),
    "a bad key": ("", ["--api-key", " blank "], "--api-key: "),
}  # fmt: skip


@pytest.fixture(scope="module")
def ended(prepared, tmp_path_factory):
    """All of them, run one after the other: name -> [status, what was said, whether more runs]."""
    folder = tmp_path_factory.mktemp("refused")
    for name, differs in MODELS.items():
        (folder / name).mkdir()
        for file in ("tokenizer.json", "tokenizer_config.json"):
            (folder / name / file).symlink_to(prepared.model / file)
        config = json.dumps({**CONFIG, "vocab_size": 129280, **differs})
        (folder / name / "config.json").write_text(config, encoding="utf-8")
    (folder / "pem").touch()  # SGLang wants a file that it names to be there
    names = {"FILE": str(folder / "pem"), "FOLDER": str(folder / "no-cache")}
    cases = {}
    for name, (model, given, _) in CASES.items():
        path = str(folder / model if model else prepared.model)
        case = dict(given) if isinstance(given, dict) else {"argv": given}
        if "engine" in case:
            case["engine"] = {"model_path": path, "device": "cpu"}
        else:
            more = [names.get(word, word) for word in case.get("argv", [])]
            case["argv"] = ["--model-path", path, "--port", str(free_port()), *FLAGS, *more]
        case["env"] = {k: names.get(v, v) for k, v in case.get("env", {}).items()}
        cases[name] = case
    results = folder / "results.json"
    done = subprocess.run(
        [str(prepared.python), str(REFUSER), str(results)], input=json.dumps(cases),
        env=environ(prepared, ""), capture_output=True, text=True, timeout=380, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    return json.loads(results.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", CASES)
def test_it_ends_with_one_line_that_says_why(ended, name):
    status, said, more_runs = ended[name]
    lines = [line for line in said.splitlines() if line.startswith("tpc-server: ")]
    assert len(lines) == 1 and said.splitlines()[-1] == lines[0], said[-3000:]
    assert lines[0].removeprefix("tpc-server: error: ").startswith(CASES[name][2])
    assert status == 1 and "Traceback" not in said and not more_runs
    assert "blank" not in lines[0]  # a key
    # No process was started for a model, and so none that opens a port.
    assert "scheduler" not in said.lower() and "Load weight" not in said
