"""What is not served is refused by the real SGLang's launch code, before anything starts. Owner:
pytest."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.sglang.prepare import CONFIG
from tests.sglang.serving import FLAGS, environ, free_port

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
# name -> (model, flags, the line's beginning)
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
    "engine": ("", {}, "SGLANG_FRONTEND=tpc: sgl.Engine has no frontend"),
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
    cases = {}
    for name, (model, flags, _) in CASES.items():
        path = str(folder / model if model else prepared.model)
        cases[name] = {"model_path": path, "device": "cpu"}
        if isinstance(flags, list):
            cases[name] = ["--model-path", path, "--port", str(free_port()), *FLAGS, *flags]
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
    # No process was started for a model, and so none that opens a port.
    assert "scheduler" not in said.lower() and "Load weight" not in said
