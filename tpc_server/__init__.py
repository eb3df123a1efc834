"""tpc_server: a thread-per-core front half of an LLM serving stack. Owner: any thread (names only).

Names are loaded when they are first used, so that the bootstrap can import this package on any
Python and a scheduler pays only for what it drives.
"""

from .version import __version__

_HOME = {
    "Server": "modes",
    "ServerError": "modes",
    "Options": "config",
    "IngressRequest": "boundary.port",
    "ServerArgs": "boundary.server_args",
    "ModelConfig": "boundary.server_args",
    "DefaultSamplingParams": "boundary.server_args",
    "DisaggregationMode": "boundary.server_args",
    "MetricsConfig": "boundary.server_args",
}
__all__ = ["__version__", *sorted(_HOME)]


def __getattr__(name):  # type: ignore[no-untyped-def]
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value
