"""The bounds of memory that docs/operations.md states, for what one attack asks of the server."""

from __future__ import annotations

from dataclasses import dataclass

from config.settings import Settings

KIB = 2**10
MIB = 2**20

CONNECTION_BYTES = 896 * KIB
READER_BYTES = 768 * KIB
PARSED_BODIES = 2
JSON_FACTOR = 37
"""How much larger the objects of the worst JSON are than its text."""
PROMPT_FACTOR = 150
"""The same for a prompt that is being built, measured with 8 MB."""
CONTEXT_FACTOR = 10
"""The same for the items of a context, at worst."""
SMALL_PROMPTS = 2
SMALL_PROMPT_BYTES = 10**6

KEPT_BYTES = 16 * MIB
"""What may stay behind an attack each time: the allocator and the interpreter keep some for themselves."""
WALL_BYTES = 400 * MIB
"""What a process may grow by, whatever one tenant does to another."""


OTHER_KEPT_BYTES = 64 * MIB
"""The same of processes other than API and worker: a session of Postgres is new now and then, and has its caches."""


def is_kept(left: int, peak: int, least: int = KEPT_BYTES) -> bool:
    """Whether what is left of a peak is more than an allocator keeps, which keeps pieces of a large one."""
    return left > max(least, peak // 8)


@dataclass(frozen=True, slots=True)
class Demand:
    """What an attack makes the server hold at most, in terms of docs/operations.md ("Memory")."""

    connections: int = 16
    readers: int = 16
    large: bool = False
    """Whether its bodies, its answers or its prompts are larger than 256 KiB."""
    contexts: bool = False
    """Whether its responses continue more than 256 KiB."""
    is_walled: bool = False
    """Whether WALL_BYTES is all that a process may grow by."""

    def api_bytes(self) -> int:
        """What the API may grow by."""
        if self.is_walled:
            return WALL_BYTES
        settings = Settings()
        held = self.connections * CONNECTION_BYTES + self.readers * READER_BYTES + KEPT_BYTES
        if self.large:
            held += 3 * settings.buffer_bytes + PARSED_BODIES * JSON_FACTOR * settings.max_body_bytes
        return held

    def worker_bytes(self) -> int:
        """What a worker may grow by."""
        if self.is_walled:
            return WALL_BYTES
        settings = Settings()
        held, prompts = KEPT_BYTES, SMALL_PROMPTS * SMALL_PROMPT_BYTES
        if self.large:
            prompts += settings.max_body_bytes
            held += self.connections * settings.max_body_bytes
        if self.contexts:
            held += CONTEXT_FACTOR * settings.max_context_bytes
        return held + prompts * PROMPT_FACTOR


TYPICAL = Demand()
LARGE = Demand(large=True)
CONTEXTS = Demand(large=True, contexts=True)
WALLED = Demand(is_walled=True)
