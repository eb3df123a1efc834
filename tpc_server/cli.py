"""The command line. Owner: the main thread.

Standard library only and Python 3.9: the bootstrap imports it to answer `--help`, `--version` and
bad flags before there is an interpreter to serve with.
"""

from __future__ import annotations

import argparse
import difflib
import os
from typing import Any, NoReturn

from .environment import env_above_0, root_path
from .foreign_flags import hint
from .parsers.formats import REASONING_PARSERS, TOOL_PARSERS, check_names
from .tell import tell
from .version import __version__

_DESCRIPTION = """\
Serve a language model over HTTP: one pinned thread per core, no GIL.

With no argument it serves SmolLM2-135M-Instruct on http://127.0.0.1:30000. Try:

  curl -N http://127.0.0.1:30000/generate -H 'Content-Type: application/json' \\
       -d '{"text": "The capital of France is", "stream": true,
            "sampling_params": {"max_new_tokens": 16, "temperature": 0}}'
"""
_EPILOG = """\
commands beside serving (`tpc-server COMMAND --help`):
  setup     prepare a free-threaded interpreter and its packages in the cache
  doctor    print what was found and why: interpreter, GIL, packages, core plan
  status    say how the server on --port is
  reload    replace its frontend process, where it has one; no request is lost
  --attach SOCKET  serve the API of a scheduler that runs elsewhere (`--attach --help`)

SIGINT, SIGTERM or SIGHUP (a closed terminal; not under nohup) drains within --drain-timeout, a
second one ends at once; the exit status is 0.
"""
COMMANDS = ("serve", "setup", "doctor", "status", "reload")


AT_LEAST_1 = (
    *("max_running_requests", "max_connections", "backlog", "synthetic_batch", "context_length"),
    *("kv_tokens", "prefill_tokens", "prefill_tokens_busy", "stream_interval"),
)

# What one engine alone does something with.
OF_LLAMA = (
    *("max_running_requests", "max_queued_requests", "kv_tokens", "prefill_tokens"),
    *("prefill_tokens_busy", "no_prefix_cache", "stream_interval"),
)
OF_SYNTHETIC = ("synthetic_script", "synthetic_tick_ms", "synthetic_seed", "synthetic_batch")


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Keeps the text's lines and shows defaults, except where there is nothing to show."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32, width=96)

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        if action.default in (None, False, argparse.SUPPRESS) or "default" in text:
            return text
        return f"{text} (default: %(default)s)"


class _Parser(argparse.ArgumentParser):
    """Says what is wrong, then where help is; argparse's own way is a page of usage first."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        given, unknown = self.parse_known_args(args, namespace)
        if unknown:
            # A word after an unknown flag is most likely its value.
            told = [
                word
                for before, word in zip(["", *unknown], unknown)
                if word.startswith("-") or not before.startswith("--")
            ]
            self.error("unknown " + ", ".join(map(self._guess, told)))
        return given

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n(`{self.prog} --help` lists the flags)\n")

    def _guess(self, word: str) -> str:
        if not word.startswith("--"):
            return f"argument {word}"
        name = word.partition("=")[0]
        known = hint(name)
        if known:
            return f"flag {name} ({known})"
        close = difflib.get_close_matches(name, self._option_string_actions, 1)
        return f"flag {name}" + (f" (did you mean {close[0]}?)" if close else "")


def positive(text: str) -> float:
    """A number of seconds or units, not negative."""
    value = float(text)
    if value < 0 or value != value:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    return value


def size(text: str) -> int:
    """Bytes; k, m and g are powers of 1024."""
    units = {"k": 10, "m": 20, "g": 30}
    raw = text.strip().lower().removesuffix("ib").removesuffix("b")
    shift = units.get(raw[-1:], 0)
    try:
        value = int(float(raw[:-1] if shift else raw) * (1 << shift))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is not a size like 65536, 64k or 8m") from None
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is not a size")
    return value


def count(text: str) -> int:
    """A whole number, not negative."""
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    return value


def port(text: str) -> int:
    """A TCP port; 0 lets the system choose."""
    value = int(text)
    if not 0 <= value <= 65535:
        raise argparse.ArgumentTypeError(f"{text} is not a port (0 to 65535)")
    return value


def build_parser(prog: str = "tpc-server") -> argparse.ArgumentParser:
    """All flags, in groups. `prog` is what the user typed."""
    p = _Parser(
        prog, usage="%(prog)s [FLAGS]", description=_DESCRIPTION, epilog=_EPILOG,
        formatter_class=_Formatter, allow_abbrev=False,
    )  # fmt: skip
    p.add_argument("--version", action="version", version=f"tpc_server {__version__}")

    g = p.add_argument_group("model")
    g.add_argument("--model-path", metavar="PATH", help="GGUF file or a folder holding one "
                   "(default: SmolLM2-135M-Instruct, fetched once)")  # fmt: skip
    g.add_argument("--served-model-name", metavar="NAME", help="name shown by /v1/models")
    g.add_argument("--tokenizer-path", metavar="PATH", help="tokenizer folder, file or cached hub "
                   "id, where it is not the model's own")  # fmt: skip
    g.add_argument("--revision", metavar="REV", help="revision of a hub id")
    g.add_argument("--engine", choices=("llama", "synthetic"), default="llama",
                   help="llama computes a real model; synthetic emits scripted ids")  # fmt: skip
    g.add_argument("--context-length", type=int, metavar="N", help="tokens, at most the model's")
    g.add_argument("--weight-version", default="default", metavar="TEXT",
                   help="reported with every answer")  # fmt: skip

    g.add_argument("--chat-template", metavar="TEMPLATE", help="Jinja file, name of one of the "
                   "model's templates, or the template itself (default: the model's)")  # fmt: skip
    g.add_argument("--default-chat-template-kwargs", default="{}", metavar="JSON",
                   help="variables of the chat template under each request's own")  # fmt: skip
    g.add_argument("--tool-call-parser", metavar="NAME", help="how the model writes tool calls: "
                   + ", ".join(sorted(TOOL_PARSERS)))  # fmt: skip
    g.add_argument("--reasoning-parser", metavar="NAME", help="how the model marks its reasoning: "
                   + ", ".join(sorted(REASONING_PARSERS)))  # fmt: skip

    g = p.add_argument_group("llama engine")
    g.add_argument("--max-running-requests", type=int, default=16, metavar="N",
                   help="sequences decoded together; more wait")  # fmt: skip
    g.add_argument("--max-queued-requests", type=count, metavar="N",
                   help="waiting requests; one more is refused with 503 (default: "
                   "no bound)")  # fmt: skip
    g.add_argument("--kv-tokens", type=int, metavar="N", help="tokens that all sequences together "
                   "may keep (default: what half of the free memory holds)")  # fmt: skip
    g.add_argument("--prefill-tokens", type=int, default=256, metavar="N",
                   help="prompt tokens computed in one step while nothing decodes")  # fmt: skip
    g.add_argument("--prefill-tokens-busy", type=int, default=64, metavar="N",
                   help="the same while others decode, and of one prompt beside others: "
                   "bounds how long they stall")  # fmt: skip
    g.add_argument("--no-prefix-cache", action="store_true", help="keep no finished sequences for "
                   "prompts that begin alike")  # fmt: skip
    g.add_argument("--stream-interval", type=int, default=1, metavar="N",
                   help="tokens between two events of a stream")  # fmt: skip

    g = p.add_argument_group("network")
    g.add_argument("--host", default="127.0.0.1", help="address to listen on, IPv4 or IPv6")
    g.add_argument("--port", type=port, default=30000, help="port; 0 lets the system choose")
    g.add_argument("--uds", metavar="PATH", help="listen on a UNIX socket instead")
    g.add_argument("--fastapi-root-path", default="", type=root_path, metavar="PATH",
                   help="what a proxy in front puts before every path; paths without it are "
                   "served, too")  # fmt: skip
    g.add_argument("--backlog", type=int, default=4096, metavar="N", help="listen backlog")

    g = p.add_argument_group("access (keys in a file or in TPC_API_KEY, TPC_ADMIN_API_KEY are not "
                             "shown by ps)")  # fmt: skip
    g.add_argument("--api-key", action="append", metavar="KEY", help="`Authorization: Bearer KEY` "
                   "opens all routes, which are closed otherwise; may be repeated")  # fmt: skip
    g.add_argument("--api-key-file", action="append", metavar="FILE", help="the same, one key a "
                   "line; lines that begin with # are comments")  # fmt: skip
    g.add_argument("--admin-api-key", action="append", metavar="KEY", help="only this opens the "
                   "routes of administration")  # fmt: skip
    g.add_argument("--admin-api-key-file", action="append", metavar="FILE", help="the same, one "
                   "key a line")  # fmt: skip
    g.add_argument("--cors-allow-origin", action="append", metavar="ORIGIN", help="web pages that "
                   "may call, like https://example.com; may be repeated; `none` for no page "
                   "(default: *)")  # fmt: skip
    g.add_argument("--enable-request-id-headers", action="store_true", help="answers to requests "
                   "without X-Request-Id get one, too")  # fmt: skip
    g.add_argument("--enable-request-header-overrides", action="store_true", help="x-override-rid, "
                   "-priority, -bootstrap-host, ... replace fields of the body")  # fmt: skip

    g = p.add_argument_group("cores")
    g.add_argument("--cores", nargs="+", metavar="SPEC", help="a count (2), CPUs (0,1,4-7) or a "
                   "map: ingress=0,1 tokenize=2,3 detok=0,1 egress=0,1 (default: from the "
                   "machine)")  # fmt: skip
    g.add_argument("--unpinned", action="store_true", help="pin no thread to a CPU")
    g.add_argument("--spin-us", type=positive, default=0.0, metavar="US",
                   help="spin this long before a core sleeps")  # fmt: skip

    g = p.add_argument_group("requests")
    g.add_argument("--default-max-new-tokens", type=int, default=128, metavar="N",
                   help="for /generate without max_new_tokens; where that is null, and for "
                   "chats without max_tokens, it is the rest of the context")  # fmt: skip
    g.add_argument("--preferred-sampling-params", metavar="JSON",
                   help="defaults under each request's own parameters")  # fmt: skip
    g.add_argument("--max-logprobs", type=int, default=1024, metavar="N",
                   help="alternatives a token that a request may ask for")  # fmt: skip
    g.add_argument("--max-logprob-entries", type=int, default=512 << 10, metavar="N",
                   help="of them at all positions of a request's prompts; 400 beyond")  # fmt: skip
    g.add_argument("--incremental-streaming-output", action="store_true",
                   help="stream only new text and ids instead of all so far")  # fmt: skip
    g.add_argument("--allow-auto-truncate", action="store_true",
                   help="cut prompts that are too long instead of refusing them")  # fmt: skip
    g.add_argument("--enable-return-hidden-states", action="store_true",
                   help="allow return_hidden_states")  # fmt: skip
    g.add_argument("--skip-tokenizer-init", action="store_true",
                   help="ids in, ids out")  # fmt: skip
    g.add_argument("--skip-server-warmup", action="store_true",
                   help="ready without a warm-up request")  # fmt: skip

    g = p.add_argument_group("OpenAI API")
    g.add_argument("--stream-response-default-include-usage", action="store_true",
                   help="end every stream with its usage, asked for or not")  # fmt: skip
    g.add_argument("--enable-cache-report", action="store_true",
                   help="usage says how many prompt tokens came from the cache")  # fmt: skip

    g = p.add_argument_group("limits and time-outs (sizes in bytes or 64k, 8m; times in seconds)")
    g.add_argument("--max-head-size", type=size, default="64k", metavar="SIZE",
                   help="request line and headers; 431 beyond")  # fmt: skip
    g.add_argument("--max-body-size", type=size, default="64m", metavar="SIZE",
                   help="request body; 413 beyond")  # fmt: skip
    g.add_argument("--max-connections", type=int, default=16384, metavar="N",
                   help="per I/O core; 503 beyond")  # fmt: skip
    g.add_argument("--stream-buffer", type=size, default="256k", metavar="SIZE",
                   help="unread output per stream; its request is aborted beyond")  # fmt: skip
    g.add_argument("--socket-buffer", type=size, default=0, metavar="SIZE",
                   help="send buffer of each connection; 0 leaves it to the kernel")  # fmt: skip
    g.add_argument("--header-timeout", type=positive, default=10.0, metavar="S",
                   help="for a request's head to arrive")  # fmt: skip
    g.add_argument("--body-timeout", type=positive, default=60.0, metavar="S",
                   help="for each 64 KiB of a body to arrive")  # fmt: skip
    g.add_argument("--keep-alive-timeout", type=positive,
                   default=env_above_0("SGLANG_TIMEOUT_KEEP_ALIVE", 75.0), metavar="S",
                   help="for an idle connection's next request")  # fmt: skip
    g.add_argument("--write-timeout", type=positive, default=120.0, metavar="S",
                   help="for a reader that takes nothing; 0 waits for ever")  # fmt: skip
    g.add_argument("--sse-keep-alive", type=positive, default=0.0, metavar="S",
                   help="comment lines on quiet streams; 0 sends none")  # fmt: skip
    g.add_argument("--drain-timeout", type=positive, default=30.0, metavar="S",
                   help="for running requests after SIGTERM")  # fmt: skip

    g = p.add_argument_group("metrics (docs/METRICS.md)")
    g.add_argument("--enable-metrics", action="store_true", help="count, and answer /metrics")
    for name, what in (("time-to-first-token", "time to the first token"),
                       ("inter-token-latency", "time between two tokens"),
                       ("e2e-request-latency", "a request's whole time")):  # fmt: skip
        g.add_argument(f"--bucket-{name}", type=positive, nargs="+", metavar="S",
                       help=f"bounds of the buckets of {what}")  # fmt: skip
    for name, what in (("prompt", "prompt lengths"), ("generation", "lengths of outputs")):
        g.add_argument(f"--{name}-tokens-buckets", nargs="+", metavar="RULE",
                       help=f"buckets of {what}: default, custom BOUND ... or "
                       "tse MIDDLE BASE COUNT")  # fmt: skip
    g.add_argument("--extra-metric-labels", metavar="JSON", help="labels of all families")
    g.add_argument("--tokenizer-metrics-allowed-custom-labels", nargs="+", metavar="LABEL",
                   help="labels that requests fill in: custom_labels of /generate, the header "
                   "x-custom-labels of the OpenAI routes")  # fmt: skip
    g.add_argument("--prometheus-multiproc-dir", metavar="DIR",
                   default=os.environ.get("PROMETHEUS_MULTIPROC_DIR"),
                   help="files of other processes to show as well (default: "
                   "PROMETHEUS_MULTIPROC_DIR)")  # fmt: skip

    g = p.add_argument_group("logs")
    g.add_argument("--log-level", default="info",
                   choices=("debug", "info", "warning", "error"), help="least level")  # fmt: skip
    g.add_argument("--log-format", default="text", choices=("text", "json"), help="line format")
    g.add_argument("--access-log", action="store_true", help="a line a request, at level info: "
                   "method, path, status, bytes, milliseconds, X-Request-Id")  # fmt: skip
    g.add_argument("--require-free-threading", action="store_true",
                   help="end instead of serving with the GIL on")  # fmt: skip

    g = p.add_argument_group("synthetic engine (docs/SYNTHETIC.md)")
    g.add_argument("--synthetic-script", metavar="FILE", help="JSON script")
    g.add_argument("--synthetic-tick-ms", type=positive, default=20.0, metavar="MS",
                   help="time of one step")  # fmt: skip
    g.add_argument("--synthetic-seed", type=int, default=0, metavar="N", help="of random ids")
    g.add_argument("--synthetic-batch", type=int, default=256, metavar="N",
                   help="requests decoded together; more wait")  # fmt: skip
    return p


def unknown_command(word: str, prog: str = "tpc-server") -> int:
    """Says so; the exit status."""
    close = difflib.get_close_matches(word, COMMANDS, 1)
    guess = f" (did you mean {close[0]}?)" if close else f"; commands are {', '.join(COMMANDS)}"
    tell(f"{prog}: error: unknown command {word}{guess}")
    tell(f"(`{prog} --help` lists flags and commands)")
    return 2


def parse(argv: list[str] | None = None, prog: str = "tpc-server") -> Any:
    """Parsed flags; argparse ends the program on bad ones."""
    parser = build_parser(prog)
    given = parser.parse_args(argv)
    for name in ("max_head_size", "max_body_size", "stream_buffer"):
        value = getattr(given, name)
        setattr(given, name, size(value) if isinstance(value, str) else value)
    for name in AT_LEAST_1:
        value = getattr(given, name)
        if value is not None and value < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    other, names = ("synthetic", OF_SYNTHETIC) if given.engine == "llama" else ("llama", OF_LLAMA)
    for name in names:
        if getattr(given, name) != parser.get_default(name):
            flag = f"--{name.replace('_', '-')}"
            parser.error(f"{flag} is of the {other} engine, and --engine is {given.engine}")
    try:
        check_names(given.reasoning_parser, given.tool_call_parser)
    except ValueError as error:
        parser.error(str(error))
    return given
