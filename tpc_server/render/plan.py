"""What a request wants rendered. Owner: stateless; plans are plain tuples that cross cores.

Standard library only: runs in a subinterpreter too.
"""

from __future__ import annotations

from typing import Final

# Positions in a plan tuple.
SKIP_SPECIAL: Final = 0
SPACES_BETWEEN: Final = 1
NO_STOP_TRIM: Final = 2
LOGPROB: Final = 3
LOGPROB_TEXT: Final = 4
HIDDEN: Final = 5
PROMPT_IDS: Final = 6
TOP_LOGPROBS: Final = 7
TOKEN_IDS_LOGPROB: Final = 8
STOPS: Final = 9

# What nearly every request wants: special tokens hidden, spaces between the others, the stop cut.
USUAL: Final = (True, True, False, False, False, False, False, 0, False, False)
