"""The dependencies: ranges for every build, bounds for the one that upstream has given up.

Owner: setuptools (everything else about the package stands in pyproject.toml).

Ranges are wide, so that installing this beside other software moves none of its packages; exact
versions live only in requirements/. CPython 3.13 without the GIL is another matter: the newest
releases of several packages neither ship wheels for it nor build on it (PyO3 dropped it in 0.29),
and no environment marker tells it from an ordinary 3.13. So a wheel built by it says what still
works there, and carries its ABI tag, by which pip offers it to no other build.
"""

from __future__ import annotations

import sys
import sysconfig

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel

RANGES = {
    "tokenizers": ">=0.20",
    "numpy": ">=1.26",
    "httptools": ">=0.6.1",
    "jiter": ">=0.8",
    "msgpack": ">=1.0.7",
    "psutil": ">=5.9",
    "gguf": ">=0.10",
    "typing_extensions": ">=4.6",
    "pyyaml": ">=5.1",
    "requests": ">=2.25",
    "tqdm": ">=4.27",
    "jinja2": ">=3.1",
    "prometheus_client": ">=0.20",
}
EXTRAS = {
    # Python 3.14 has it.
    "zstd": {"backports.zstd": ">=1.0; python_version < '3.14'"},
    "granian": {"granian": ">=2.0"},
    "test": {"pytest": ">=8", "pytest-timeout": ">=2.3", "hypothesis": ">=6.100"},
}
EXTRAS["dev"] = {**EXTRAS["test"], "ruff": ">=0.12", "mypy": ">=1.15", "pre-commit": ">=4"}

# The last releases that run on free-threaded 3.13.
BOUNDS_313T = {
    "tokenizers": "<0.23.2",
    "numpy": "<2.5",
    "jiter": "<0.16",
    "granian": "<2.8",
    "hypothesis": "<6.156",
    "mypy": "<1.19",
}
# Wanted by tokenizers' own dependencies, never imported here.
ONLY_BOUNDED_313T = {"hf-xet": "<1.5.2"}


def is_313t() -> bool:
    """True when this runs on a free-threaded CPython 3.13."""
    return sys.version_info[:2] == (3, 13) and bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


def requirements(ranges: dict[str, str], old: bool) -> list[str]:
    """`name>=range` lines; with the upper bounds when `old`."""
    bounds = BOUNDS_313T if old else {}
    return [
        name + ",".join(filter(None, (low, bounds.get(name, "")))) for name, low in ranges.items()
    ]


class TaggedWheel(bdist_wheel):
    """A wheel that only the build that it is right for will take."""

    def get_tag(self) -> tuple[str, str, str]:
        tag: tuple[str, str, str] = super().get_tag()
        if is_313t():
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            return "cp313", "cp313t", platform
        return tag


if __name__ == "__main__":
    needed = {**RANGES, **(ONLY_BOUNDED_313T if is_313t() else {})}
    setup(
        install_requires=requirements(needed, is_313t()),
        extras_require={name: requirements(r, is_313t()) for name, r in EXTRAS.items()},
        cmdclass={"bdist_wheel": TaggedWheel},
    )
