"""The engines the program can start, behind one face. Owner: the main thread.

An engine is a scheduler: it runs on a thread of its own and knows `Server` only. What the
launcher needs of it beside that is gathered here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..flag_checks import check_chat_template
from ..text.hub_cache import cached_snapshot

_PATHS = ("/", "./", "../", "~")
Progress = Callable[[str, float], None]
#: Settings of the llama engine by the flag that says them, where they differ.
_FLAGS = {"context_len": "--context-length", "kv_tokens": "--kv-tokens"}


class EngineProblem(Exception):
    """The engine cannot be made; the text says why."""


class Engine:
    """What the launcher knows of an engine: facts of its model, and how to run it."""

    def __init__(
        self, name: str, runner: Any, model_path: str, model_name: str, tokenizer_path: str,
        context_len: int, vocab_size: int, max_total_tokens: int | None, grammars: bool,
        detail: str, model_type: str,
    ) -> None:  # fmt: skip
        self.name = name
        self._runner = runner
        self.model_path = model_path
        self.model_name = model_name
        self.tokenizer_path = tokenizer_path
        self.context_len = context_len
        self.vocab_size = vocab_size
        self.max_total_tokens = max_total_tokens
        self.grammars = grammars
        self.model_type = model_type
        self._detail = detail

    def describe(self) -> str:
        """Engine and its model in a few words."""
        return f"{self.name} engine, {self._detail}"

    def run(self, server: Any, stopping: Any) -> None:
        """Schedule until `stopping` is set. On the engine's thread."""
        self._runner.run(server, stopping)


def engine_cpus(name: str, facts: Any) -> int:
    """How many CPUs an engine can use well."""
    return int(facts.budget) if name == "llama" else 1


def before_imports(given: Any, core_plan: Any) -> None:
    """What must be settled before numpy is imported by whoever comes first."""
    if given.engine == "llama":
        from .llama.blas import prepare_blas

        prepare_blas(core_plan.scheduler_cpus)


def create(given: Any, core_plan: Any, progress: Progress) -> Engine:
    """The engine of these flags, its model loaded. Raises EngineProblem."""
    path = given.model_path
    if path is None and given.engine == "synthetic" and given.tokenizer_path is not None:
        return _synthetic(given, given.tokenizer_path)  # a tokenizer is all it needs
    if path is None:
        path = str(_default_model())
        given.served_model_name = given.served_model_name or "SmolLM2-135M-Instruct"
    else:
        path = local_model(path, given.revision)
        if path != given.model_path:
            given.served_model_name = given.served_model_name or given.model_path
    if given.engine == "synthetic":
        return _synthetic(given, path)
    return _llama(given, path, core_plan, progress)


def local_model(path: str, revision: str | None) -> str:
    """A path as it is, a hub id as its folder in the local cache; nothing is downloaded for it."""
    if Path(path).exists() or path.endswith((".gguf", ".json")) or path.startswith(_PATHS):
        return path
    folder, tried = cached_snapshot(path, revision or "main")
    if folder is not None:
        return str(folder)
    if path.count("/") > 1:
        return path
    raise EngineProblem(
        f"--model-path {path}: no such file or folder, and no hub model of that name in the local "
        f"cache ({'; '.join(tried)}). Models are not downloaded from here: fetch it first, with "
        f"`hf download {path}` for one, or give the path of a GGUF file"
    )


def _folder_name(path: str) -> str:
    """What a model is called by where it lies; a hub id is its own name."""
    if not Path(path).exists():
        return path
    place = Path(os.path.abspath(path))
    return place.parent.name if place.suffix == ".json" else place.name


def _default_model() -> Path:
    from ..bootstrap.fetch import model_path
    from ..bootstrap.progress import BootstrapError

    try:
        return model_path()
    except BootstrapError as error:
        raise EngineProblem(f"the default model cannot be had: {error}") from None


def _llama(given: Any, path: str, core_plan: Any, progress: Progress) -> Engine:
    from ..text.load import TokenizerError, load_tokenizer
    from .llama.decoding import make_decode
    from .llama.engine import LlamaEngine
    from .llama.errors import EngineError, SettingError
    from .llama.settings import LlamaSettings

    settings = LlamaSettings(
        max_running_requests=given.max_running_requests,
        max_queued_requests=given.max_queued_requests,
        kv_tokens=given.kv_tokens,
        prefill_tokens=given.prefill_tokens,
        prefill_tokens_busy=given.prefill_tokens_busy,
        prefix_cache=not given.no_prefix_cache,
        stream_interval=given.stream_interval,
        context_len=given.context_length,
        weight_version=given.weight_version,
        cpus=core_plan.scheduler_cpus or None,
    )
    try:
        decode = None
        if not given.skip_tokenizer_init:  # stop strings need the text of what was generated
            tokenizer = load_tokenizer(given.tokenizer_path or path, given.revision)
            check_chat_template(given, tokenizer)
            decode = make_decode(tokenizer.json_text)
        made = LlamaEngine.load(path, settings, progress, decode)
    except SettingError as error:
        raise EngineProblem(f"{_FLAGS[error.setting]}: {error.text}") from None
    except (EngineError, TokenizerError, ValueError) as error:
        raise EngineProblem(str(error)) from None
    budget = made.stats()["kv_budget_tokens"]
    detail = f"{made.context_len} tokens of context"
    if budget < made.context_len:
        why = "--kv-tokens" if given.kv_tokens is not None else "free memory"
        detail += f", room for {budget}: {why}"
    return Engine(
        "llama", made, path, made.model_name, path, made.context_len, made.vocab_size,
        budget, False, detail, "llama",
    )  # fmt: skip


def _synthetic(given: Any, path: str) -> Engine:
    from ..text.load import TokenizerError, load_tokenizer
    from .synthetic import SyntheticEngine, SyntheticSettings
    from .synthetic_script import ScriptError, load_script

    try:
        tokenizer = load_tokenizer(given.tokenizer_path or path, given.revision)
        if not given.skip_tokenizer_init:
            check_chat_template(given, tokenizer)
    except (TokenizerError, ValueError) as error:
        raise EngineProblem(str(error)) from None
    scripts: Any = ()
    faults: Any = ()
    if given.synthetic_script is not None:
        try:
            scripts, faults = load_script(given.synthetic_script)
        except ScriptError as error:
            text = str(error).removeprefix(f"{given.synthetic_script}: ")
            raise EngineProblem(f"--synthetic-script {given.synthetic_script}: {text}") from None
    context = given.context_length or 32768
    pieces = tokenizer.pieces
    settings = SyntheticSettings(
        tokenizer.vocab_size,
        context,
        tick_ms=given.synthetic_tick_ms,
        max_running=given.synthetic_batch,
        seed=given.synthetic_seed,
        eos_ids=tokenizer.eos_ids,
        token_bytes=pieces.pieces if pieces is not None else None,
        weight_version=given.weight_version,
        scripts=scripts,
        faults=faults,
    )
    try:
        made = SyntheticEngine(settings)
    except ScriptError as error:
        raise EngineProblem(f"--synthetic-script {given.synthetic_script}: {error}") from None
    return Engine(
        "synthetic", made, path, given.served_model_name or _folder_name(path),
        given.tokenizer_path or path, context, tokenizer.vocab_size, None, False,
        f"{given.synthetic_tick_ms:g} ms a step", "synthetic",
    )  # fmt: skip
