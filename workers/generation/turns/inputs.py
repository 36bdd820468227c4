"""The input of a response: the items of its context and its own input, unsealed, and its secrets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from app.bounds import Bound
from app.heavy import off_loop
from app.protocol.requests.strict_json import loads
from app.protocol.types import Json
from app.protocol.unsealing import since_compaction, unsealed
from app.sizes import LARGE_BYTES, is_large, item_count
from app.store.context.contents import (
    ContextGone,
    context_items,
    copied_calls_size,
    copied_from,
    restore_calls,
)
from app.store.context.size import context_bytes
from app.store.database import Database, retry_until_available
from app.store.keys import SharedSealer
from app.store.rows import HasContext, PromptSource
from app.store.sealing import BadSeal, SealedKind, Sealer, unseal_headers
from workers.engine.base import EngineError, InvalidPrompt
from workers.formats.builder import build_turn, draft_of, turn_of
from workers.formats.turn import Draft, Turn, TurnPlan

T = TypeVar("T")
Items = Sequence[Json]
Prepare = Callable[[Items], Awaitable[Items]]
_KEY_LOST = "the deployment's key was lost"
"""The API could open, or sealed, what cannot be decrypted here."""


class ContextLost(EngineError):
    """A response that this one continues was deleted."""

    code = "previous_response_not_found"

    def __init__(self) -> None:
        super().__init__("a response that this one continues was deleted")


class ContextTooLong(EngineError):
    """A response that this one continues, or its conversation, is larger than a worker may read."""

    code = "context_length_exceeded"

    def __init__(self, most_bytes: int) -> None:
        super().__init__(f"the responses or the conversation that it continues have more than {most_bytes} bytes")


class UnreadableRequest(EngineError):
    """The stored request is damaged."""

    def __init__(self) -> None:
        super().__init__("the stored request cannot be read")


class Inputs:
    """Reads what responses are generated from: the same at every attempt. Waits for Postgres."""

    def __init__(self, db: Database, most_bytes: int, held_bytes: int) -> None:
        """`most_bytes` is the most that one response may continue, `held_bytes` the most that is held at once."""
        self._db = db
        self._most_bytes = most_bytes
        self.contexts = Bound("bytes of contexts", held_bytes, LARGE_BYTES, shares=False)
        self.calls = Bound("bytes of copied calls", held_bytes, LARGE_BYTES, shares=False)
        self._sealer = SharedSealer(db)

    async def size(self, row: HasContext) -> int:
        """The bytes of what the response continues. Raises ContextTooLong."""
        return self._checked(await retry_until_available(lambda: context_bytes(self._db, row)))

    async def read(self, row: HasContext) -> list[Json]:
        """The items of the context since its newest compaction, then those of the response's own input.

        Raises ContextLost.
        """
        try:
            before = await retry_until_available(lambda: context_items(self._db, row))
        except ContextGone:
            raise ContextLost from None
        own: list[Json] = row.request["input"]
        return await off_loop(partial(since_compaction, before, own), items=item_count([*before, *own]))

    async def size_of_calls(self, row: HasContext, responses: Sequence[str]) -> int:
        """The bytes of the calls that `restore` reads. Raises ContextTooLong."""
        return self._checked(await retry_until_available(lambda: copied_calls_size(self._db, row.project, responses)))

    async def restore(self, row: HasContext, items: list[Json], responses: Sequence[str]) -> list[Json]:
        """The same items, with the calls that a client copied from these responses without seeing them."""
        return await retry_until_available(lambda: restore_calls(self._db, row.project, items, responses))

    def _checked(self, size: int) -> int:
        if size > self._most_bytes:
            raise ContextTooLong(self._most_bytes)
        return size

    async def unseal(self, project: str, items: list[Json]) -> list[Json]:
        """The project's items with their encrypted content in plain text. Raises InvalidPrompt."""
        sealer = await self._project_sealer(project)
        reasoning, summaries = (partial(sealer.unseal, kind) for kind in (SealedKind.REASONING, SealedKind.COMPACTION))
        try:
            return await off_loop(partial(unsealed, items, reasoning, summaries), items=item_count(items))
        except BadSeal:
            raise InvalidPrompt("an item's 'encrypted_content' cannot be decrypted: " + _KEY_LOST) from None

    async def prompt(self, project: str, sealed: bytes) -> PromptSource:
        """The project's prompt that is to be counted, from what Redis had. Raises UnreadableRequest."""
        sealer = await self._project_sealer(project)

        def unsealed_prompt() -> PromptSource:
            found = loads(sealer.unseal(SealedKind.PROMPT, sealed.decode()).encode())
            return PromptSource(project, **found)

        try:
            return await off_loop(unsealed_prompt, len(sealed))
        except (BadSeal, UnicodeDecodeError):
            raise UnreadableRequest from None

    async def secrets(self, project: str, request: Mapping[str, Any]) -> dict[str, dict[str, str]]:
        """The HTTP headers that the request brought for MCP servers, by server label. Raises EngineError."""
        if not (sealed := request.get("secrets")):
            return {}
        sealer = await self._project_sealer(project)
        try:
            return {label: unseal_headers(sealer, token) for label, token in sealed.items()}
        except BadSeal:
            raise EngineError("the 'headers' of a tool cannot be decrypted: " + _KEY_LOST) from None

    async def seal(self, project: str, kind: SealedKind) -> Callable[[str], str]:
        """Seals texts of this kind for the project."""
        return partial((await self._project_sealer(project)).seal, kind)

    async def _project_sealer(self, project: str) -> Sealer:
        return await retry_until_available(lambda: self._sealer.get(project))


class Context:
    """What one response is generated from, read whenever a prompt is built.

    Only a small context stays in memory between two prompts. A large one would keep others waiting while its response
    generates, or runs its tools, for hours perhaps.
    """

    def __init__(self, inputs: Inputs, row: HasContext) -> None:
        self._inputs = inputs
        self._row = row
        self._kept: list[Json] | None = None

    async def turn(self, prepare: Prepare, plan: Callable[[Items], Awaitable[TurnPlan]]) -> Turn:
        """Returns the turn after the items as `prepare` returns them, by a plan that is made of those.

        A large context is dropped while a grammar is tried, and read again for the prompt. Raises what `use`,
        `build_turn` and the arguments raise.
        """

        async def begin(items: Items) -> Turn | TurnPlan:
            shown = await prepare(items)
            made = await plan(shown)
            if self._kept is None and made.may_take_long:
                return made
            return await build_turn(made, shown)

        async def end(made: TurnPlan, draft: Draft, items: Items) -> Turn:
            return await turn_of(made, draft, await prepare(items))

        begun = await self.use(begin)
        if isinstance(begun, Turn):
            return begun
        return await self.use(partial(end, begun, await draft_of(begun)))

    async def use(self, work: Callable[[list[Json]], Awaitable[T]]) -> T:
        """Returns what `work` returns. It gets the items before the response's own input, since their newest
        compaction, and then its input, all in plain text.

        They are for `work` alone: while it runs, their bytes count as held. Waits until they may be read. Raises
        ContextLost, ContextTooLong, InvalidPrompt, and what `work` raises.
        """
        if self._kept is not None:
            return await work(self._kept)
        inputs, row = self._inputs, self._row
        size = await inputs.size(row)
        with await inputs.contexts.wait(row.project, size):
            items = await inputs.read(row)
            responses = await off_loop(partial(copied_from, items), items=item_count(items))
            calls = await inputs.size_of_calls(row, responses) if responses else 0
            with await inputs.calls.wait(row.project, calls):  # always after the other, so no two wait for each other
                items = await inputs.unseal(
                    row.project, await inputs.restore(row, items, responses) if responses else items
                )
                if not is_large(size + calls):
                    self._kept = items
                return await work(items)
