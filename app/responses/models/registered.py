"""What the workers know of their models and the models file leaves open: format, parsers, efforts, context length, and
what they refuse.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from app.store.database import Database, StoreUnavailable
from app.store.queue import workers
from app.store.queue.workers import RegisteredModel
from config.families import Format, Reading
from config.models import ServedModel

LOOK_SECONDS = 2.0
"""Between two looks, however many ask. What was found before holds until a worker says otherwise."""
WAIT_SECONDS = 1.0
"""How long a request waits for Postgres."""


class RegisteredModels:
    """Completes models of the models file. A model that no worker has registered yet stays open: its worker decides."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._lock = asyncio.Lock()
        self._found: Mapping[str, RegisteredModel] = {}
        self._looked_at = float("-inf")
        self._completed: dict[str, tuple[ServedModel, ServedModel]] = {}
        """Models by name, as they were asked for and completed since the last look."""

    async def resolved(self, model: ServedModel) -> ServedModel:
        """The model with its format, its parsers and its efforts, as far as they are known."""
        return await self._completed_of(model) if _is_open(model) else model

    async def complete(self, model: ServedModel) -> ServedModel:
        """The model with its context length, too."""
        return await self._completed_of(model) if _is_open(model) or model.context_length is None else model

    async def _completed_of(self, model: ServedModel) -> ServedModel:
        if not self._knows():
            await self._look()
        known = self._completed.get(model.name)
        if known is None or known[0] is not model:
            known = self._completed[model.name] = model, self._with_found(model)
        return known[1]

    def _with_found(self, model: ServedModel) -> ServedModel:
        found = self._found.get(model.base or model.name)
        if found is None:
            return model
        reading = Reading(
            cast(Format, found.format), found.tool_parser, found.reasoning_parser, "", found.default_sampling
        )
        length = found.context_length if model.context_length is None else model.context_length
        return replace(model.resolved(reading), context_length=length, efforts=found.efforts, refusals=found.refusals)

    async def _look(self) -> None:
        """Reads the workers' models again. While Postgres is away, the last answer holds."""
        async with self._lock:
            if self._knows():  # another request has looked
                return
            try:
                async with asyncio.timeout(WAIT_SECONDS):
                    self._found = {**self._found, **await workers.registered_models(self._db)}
            except (TimeoutError, StoreUnavailable):
                pass
            self._completed.clear()
            self._looked_at = asyncio.get_running_loop().time()

    def _knows(self) -> bool:
        return asyncio.get_running_loop().time() < self._looked_at + LOOK_SECONDS


def _is_open(model: ServedModel) -> bool:
    """Whether something is left that only its workers know, and a request may ask for: harmony's is known."""
    return not (model.is_resolved and model.harmony)
