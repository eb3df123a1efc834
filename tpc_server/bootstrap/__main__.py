"""Start of the bootstrap: `python3 tpc_server/bootstrap ARGS`, or with -m. Owner: the process."""

import sys

if not __package__:
    # Run by path. The real tpc_server/__init__.py is not run: this must work on a Python that is
    # too old for it.
    import os.path
    import types

    _here = os.path.dirname(os.path.abspath(__file__))
    _package = types.ModuleType("tpc_server")
    _package.__path__ = [os.path.dirname(_here)]
    sys.modules["tpc_server"] = _package

from tpc_server.bootstrap import main

if __name__ == "__main__":
    sys.exit(main())
