"""The page of a whole server, from its shared region. Owner: the helper thread that makes it."""

from __future__ import annotations

from typing import Any

from .exposition import Exposition
from .http import make_layout
from .own import OwnFamilies


class Pages:
    """Makes the page again and again, with a mapping of the region of its own."""

    __slots__ = ("_config", "_exposition", "_link", "_words")

    def __init__(self, config: Any, link: Any) -> None:
        self._config = config
        self._link = link
        self._exposition: Exposition | None = None
        self._words: Any = None

    def page(self) -> bytes:
        """The newest one. Always on the same thread."""
        if self._exposition is None:
            link = self._link
            layout = make_layout(self._config)
            assert layout is not None
            own = OwnFamilies(link, link.region.mapping().words)
            self._words = link.metrics.words()
            self._exposition = Exposition(layout, self._words, (), own)
        # Other processes come and go.
        self._exposition.blocks = self._link.metrics.blocks(self._words)
        return self._exposition.text()
