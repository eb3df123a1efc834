"""What ends SGLang's start with one line. Owner: any thread (a class)."""

from __future__ import annotations


class Problem(Exception):
    """Why we cannot serve this SGLang; the text says what to do."""

    plain = True
