"""A response whose client waits on the line.

subscribe -> insert, commit -> message -> wait for its end | the client leaves -> cancelled
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

from app.protocol.errors import BAD_PROMPT_CODES, FAILURES, InvalidRequest, NotFound, ServerFault
from app.protocol.events.chunk import Chunk
from app.protocol.status import Status
from app.protocol.types import Json
from app.store.database import StoreUnavailable
from app.store.rows import ResponseRow

RETRY_SECONDS = 0.5


class Foreground:
    """What the client of one foreground response gets, while it stays. `ResponseService.foreground` makes it.

    `opened` is the number of the last event that the response was stored with.
    """

    def __init__(
        self,
        response_id: str,
        opened: int,
        pulses: AsyncGenerator[Chunk | None, None],
        read_row: Callable[[], Awaitable[ResponseRow | None]],
        abandon: Callable[[str], None],
    ) -> None:
        self._id = response_id
        self._opened = opened
        self._pulses = pulses
        self._read_row = read_row
        self._abandon = abandon
        self._ended = False

    def leave(self) -> None:
        """The client waits no longer: a response that has not ended is cancelled, by and by."""
        if not self._ended:
            self._abandon(self._id)

    def __aiter__(self) -> Foreground:
        return self

    async def __anext__(self) -> Chunk | None:
        """The next chunk, or None where nothing came for a while."""
        try:
            pulse = await anext(self._pulses)
        except StopAsyncIteration:
            self._ended = True
            raise
        self._ended = self._ended or (pulse is not None and pulse.final)
        return pulse

    async def beginning(self) -> list[Chunk | None]:
        """What to send first. It waits for a worker's first event, or until it is time for a keep-alive.

        A prompt that cannot be answered is known before any event: raises InvalidRequest, as `result` does.
        """
        held: list[Chunk | None] = []
        async for pulse in self:
            held.append(pulse)
            if pulse is None or pulse.last > self._opened:
                break
        if held and (last := held[-1]) is not None and last.final:
            _refuse_bad_prompt(await self._settled())
        return held

    async def result(self) -> Json:
        """The response object, once it is final.

        Raises InvalidRequest where the prompt was at fault, Unavailable or TimedOut where it waited or ran too
        long, and ServerFault for every other failure: like OpenAI's API, which answers a synchronous request with an
        error body and not with a `failed` response. Raises NotFound where the response was deleted while it ran.
        """
        async for pulse in self:
            if pulse is not None and pulse.final:
                break
        row = await self._settled()
        if row is None:
            raise NotFound(f"Response with id '{self._id}' was deleted.", code="response_not_found")
        _refuse_bad_prompt(row)
        if row.status is Status.FAILED and row.error is not None:
            code = row.error["code"]
            raise FAILURES.get(code, ServerFault)(row.error["message"], code=code)
        return row.as_object()

    async def _settled(self) -> ResponseRow | None:
        """The row; waits for Postgres where it is away."""
        while True:
            try:
                return await self._read_row()
            except StoreUnavailable:
                await asyncio.sleep(RETRY_SECONDS)


def _refuse_bad_prompt(row: ResponseRow | None) -> None:
    """Raises InvalidRequest where a response failed for what its caller sent."""
    if row is not None and row.error is not None and row.error["code"] in BAD_PROMPT_CODES:
        code = row.error["code"]
        raise InvalidRequest(row.error["message"], BAD_PROMPT_CODES[code], code)
