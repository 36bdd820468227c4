"""The models file while a process runs: it is read again when its content has changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from config.models import ModelCatalog, load_catalog
from config.settings import ConfigError, Settings

LOOK_SECONDS = 0.5
"""Pause between two looks at the file."""


class ModelsFile:
    """A models file that may change. `catalog` is its last valid content. Making it raises ConfigError."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._seen = self._used = self._content()
        self.catalog = load_catalog(settings)

    def look(self) -> bool:
        """Reads the file if it has changed; returns whether `catalog` is another one now.

        A new content counts if two looks in a row find it: an editor may be writing. Raises ConfigError once for each
        content that is not valid; `catalog` stays as it was.
        """
        content = self._content()
        is_written, self._seen = content == self._seen, content
        if content == self._used or not is_written:
            return False
        self._used = content
        before, self.catalog = self.catalog, load_catalog(self._settings)
        return self.catalog != before

    async def unchanged(self, seconds: float) -> None:
        """Waits so long, or until the file has another content."""
        content = self._content()
        while seconds > 0 and self._content() == content:
            await asyncio.sleep(min(seconds, LOOK_SECONDS))
            seconds -= LOOK_SECONDS

    async def changes(self, complain: Callable[[str], None]) -> AsyncIterator[ModelCatalog]:
        """Yields each new catalog, and never ends. `complain` gets a line about each content that is not valid."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                has_changed = await asyncio.to_thread(self.look)
            except Exception as error:  # Whatever reading raises: who follows the file must go on.
                said = error if isinstance(error, ConfigError) else type(error).__name__
                complain(f"{said}; the models stay as they were")
            else:
                if has_changed:
                    yield self.catalog

    def _content(self) -> bytes | None:
        try:
            return self._settings.models.read_bytes()
        except OSError:
            return None
