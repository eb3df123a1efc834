"""Names that flags have with other servers, for who types them here. Owner: stateless.

Standard library only and Python 3.9, as `cli.py`, which asks before it looks for a likeness.
"""

from __future__ import annotations

# vLLM's, SGLang's, uvicorn's and llama.cpp's names of what is here.
_HERE = {
    "--allowed-origins": "--cors-allow-origin",
    "--chunked-prefill-size": "--prefill-tokens",
    "--ctx-size": "--context-length",
    "--disable-radix-cache": "--no-prefix-cache",
    "--limit-concurrency": "--max-connections",
    "--log-requests": "--access-log",
    "--max-model-len": "--context-length",
    "--max-num-batched-tokens": "--prefill-tokens",
    "--max-num-seqs": "--max-running-requests",
    "--max-total-tokens": "--kv-tokens",
    "--model": "--model-path",
    "--no-enable-prefix-caching": "--no-prefix-cache",
    "--override-generation-config": "--preferred-sampling-params",
    "--root-path": "--fastapi-root-path",
    "--threads": "--cores",
    "--timeout-graceful-shutdown": "--drain-timeout",
    "--timeout-keep-alive": "--keep-alive-timeout",
    "--tokenizer": "--tokenizer-path",
    "--uvicorn-log-level": "--log-level",
    "--workers": "--cores",
}
# What is not, with the reason.
_NOT_HERE = {
    "an engine's: SGLang takes it where we serve it, see docs/SGLANG.md": (
        *("--tensor-parallel-size", "--tp-size", "--tp", "--pipeline-parallel-size", "--pp-size"),
        *("--data-parallel-size", "--dp-size", "--dp", "--expert-parallel-size", "--ep-size"),
        *("--mem-fraction-static", "--gpu-memory-utilization", "--dtype", "--quantization"),
        *("--kv-cache-dtype", "--attention-backend", "--speculative-algorithm", "--device"),
        *("--load-format", "--enable-lora", "--lora-paths"),
    ),
    "not here: there is no TLS, put a proxy in front": ("--ssl-keyfile", "--ssl-certfile"),
    "not needed: --tool-call-parser does it": ("--enable-auto-tool-choice",),
    "not needed: no code of a model is run": ("--trust-remote-code",),
}


def hint(flag: str) -> str:
    """What to say of another server's flag, or ""."""
    if flag in _HERE:
        return f"here it is {_HERE[flag]}"
    return next((why for why, flags in _NOT_HERE.items() if flag in flags), "")
