"""`python -m tpc_server` and `tpc-server`. Owner: the main thread."""

from __future__ import annotations

import sys


def main(argv: list[str] | None = None) -> int:
    """Run a command or serve; the exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    if arguments and arguments[0] in ("setup", "doctor"):
        from .bootstrap import main as bootstrap_main

        return int(bootstrap_main(arguments))
    if arguments and arguments[0] in ("reload", "status"):
        from .link.control import main as control_main

        return control_main(arguments[0], arguments[1:])
    if arguments == ["help"]:
        arguments = ["--help"]
    if any(word == "--attach" or word.startswith("--attach=") for word in arguments):
        if "--help" not in arguments and "-h" not in arguments:
            _leave_the_gil(arguments)
        from .link.attach import main as attach_main

        return attach_main(arguments)
    serving = bool(arguments) and arguments[0] == "serve"
    if serving:
        arguments = arguments[1:]
    from . import cli

    if arguments and not arguments[0].startswith("-") and not serving:
        return cli.unknown_command(arguments[0])
    given = cli.parse(arguments)
    _leave_the_gil(arguments)
    from .launch import run

    return run(given)


def _leave_the_gil(arguments: list[str]) -> None:
    """Where this interpreter has a GIL, go on as the one that `setup` has prepared, as
    `./tpc serve` would. Returns where there is none, or TPC_PYTHON names one with a GIL."""
    from . import runtime

    if runtime.free_threaded_build():
        return
    from .bootstrap.cli import become
    from .bootstrap.prepared import prepared_python
    from .bootstrap.progress import BootstrapError
    from .tell import tell

    try:
        python = prepared_python(strict=True)
    except BootstrapError as error:
        sys.exit(f"tpc-server: error: {error}")
    if python is None:
        return

    tell(f"tpc-server: this Python has a GIL, going on with {python}")
    become(python, ["-m", "tpc_server", *arguments])


if __name__ == "__main__":
    sys.exit(main())
