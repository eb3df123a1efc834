"""The default model's numbers against transformers on torch, an independent implementation.

Heavy: without `TPC_TORCH_PYTHON` (an interpreter that has torch, transformers, gguf and accelerate)
the environment of the real SGLang on CPU is made once in the cache (5 GB), from a Python with a
GIL; its pins are those of `requirements/sglang-cpu.txt` and `torch-reference.txt`.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.llama_driver import Driver
from tpc_server.bootstrap import cache, clients
from tpc_server.bootstrap.fetch import model_path
from tpc_server.engines.llama.engine import LlamaEngine
from tpc_server.engines.llama.kv_cache import KvCache
from tpc_server.engines.llama.model import LlamaModel, Piece
from tpc_server.engines.llama.settings import LlamaSettings
from tpc_server.engines.llama.weights import load_weights
from tpc_server.text.load import load_tokenizer

pytestmark = [pytest.mark.full, pytest.mark.network, pytest.mark.timeout(3600)]

LOCK = Path(__file__).parents[2] / "requirements" / "torch-reference.txt"
N_IDS = 24
CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
TEXTS = (
    "The capital of France is",
    "Once upon a time",
    "def fibonacci(n):",
    "Water boils at",
    "1, 2, 3, 4,",
    "The quick brown fox",
    "In 1969,",
    "import numpy as np\n",
    "Dear Sir or Madam,",
    "The three primary colours are",
    "Bonjour, je m'appelle",
    "Q: What is 2+2?\nA:",
    "<html><head>",
    "Roses are red,",
    "The theory of relativity",
    *(
        CHAT.format(question)
        for question in (
            "What is the capital of France?",
            "Write a haiku about the sea.",
            "Why is the sky blue?",
            "Translate 'good morning' to Spanish.",
            "Name three fruits.",
        )
    ),
)


def quiet(text: str, done: float) -> None:
    pass


@pytest.fixture(scope="module")
def torch_python() -> tuple[str, dict[str, str]]:
    """An interpreter and its environment variables."""
    given = os.environ.get("TPC_TORCH_PYTHON")
    if given:
        return given, dict(os.environ)
    base = clients.sglang_interpreter()
    assert base is not None, "needs a Python with a GIL: name one that has torch, TPC_TORCH_PYTHON"
    python = str(clients.client_environment(clients.SGLANG, base))

    def make(target: Path) -> None:
        pip = [python, "-m", "pip", "install", "-q", "--no-deps", "--require-hashes"]
        subprocess.run([*pip, "--target", str(target), "-r", str(LOCK)], check=True)

    key = hashlib.sha256(LOCK.read_bytes()).hexdigest()[:12]
    beside = cache.build_once(cache.sub("tests"), f"torch-{key}", "what torch lacks", make)
    return python, {**os.environ, "PYTHONPATH": str(beside)}


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_str(load_tokenizer(str(model_path())).json_text)
    return [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]


@pytest.fixture(scope="module")
def reference(torch_python, prompts, tmp_path_factory) -> dict[str, np.ndarray]:
    folder = tmp_path_factory.mktemp("torch")
    (folder / "prompts.json").write_text(json.dumps(prompts))
    script = Path(__file__).with_name("torch_reference.py")
    python, env = torch_python
    command = [python, script, model_path(), folder / "prompts.json", folder / "out.npz"]
    subprocess.run([*command, str(N_IDS)], check=True, timeout=3000, env=env)
    return dict(np.load(folder / "out.npz"))


def test_logits_are_within_a_thousandth(reference, prompts) -> None:
    weights = load_weights(model_path(), None, quiet)
    model = LlamaModel(weights, 256)
    for k, ids in enumerate(prompts):
        slot = KvCache(weights.config, 1, 256).take(ids, 256, 0)
        slot.reserve(len(ids))
        logits = model.logits(model.forward([Piece(slot, 0, ids)]))
        worst = float(np.abs(logits - reference[f"logits{k}"]).max())
        assert worst < 1e-3, f"{TEXTS[k]!r}: {worst}"


def test_greedy_answers_are_the_same_alone_and_together(reference, prompts) -> None:
    for at_once in (1, 7, len(prompts)):
        engine = LlamaEngine.load(
            model_path(), LlamaSettings(max_running_requests=at_once, prefix_cache=False), quiet
        )
        driver = Driver()
        for k, ids in enumerate(prompts):
            driver.generate(f"{k}", ids, top_k=1, ignore_eos=True, max_new_tokens=N_IDS)
        driver.run(engine)
        for k, text in enumerate(TEXTS):
            assert driver.ids(f"{k}") == reference[f"ids{k}"].tolist(), f"{at_once}: {text!r}"
