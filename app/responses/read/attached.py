"""A foreground response, as its client gets it while it stays connected.

subscribe -> insert, commit -> message -> events up to the end | the client leaves -> cancelled
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable

from app.protocol.errors import BAD_PROMPT_CODES, FAILURES, InvalidRequest, NotFound, ServerFault
from app.protocol.limits import Allowance
from app.protocol.requests.bodies.create_response import CreateResponse
from app.protocol.status import Status
from app.protocol.types import Json
from app.responses.read.reader import Pulse
from app.store.database import retry_until_available
from app.store.rows import ResponseRow

_FIELD = re.compile(r"([a-z_]+)(?:\.[a-z_]+|\[\d+\])*(?=:? )")

LAST_OPENING_EVENT = 1
"""The sequence number of the last event that a response is inserted with: created, queued."""


class AttachedResponse:
    """The events and the result of a response whose client waits for it. `ResponseService.attach` makes it.

    `read_row` reads the response, and `abandon` cancels it in the background.
    """

    def __init__(
        self,
        response_id: str,
        pulses: AsyncGenerator[Pulse, None],
        read_row: Callable[[], Awaitable[ResponseRow | None]],
        abandon: Callable[[], None],
        allowance: Allowance | None = None,
    ) -> None:
        self.allowance = allowance
        """What the limits of the project leave; None: it has none, or the response was created before."""
        self._id = response_id
        self._pulses = pulses
        self._read_row = read_row
        self._abandon = abandon
        self._ended = False

    def detach(self) -> None:
        """The client waits no longer: a response that has not ended is abandoned. Its last event still arrives."""
        if not self._ended:
            self._abandon()

    def __aiter__(self) -> AttachedResponse:
        return self

    async def __anext__(self) -> Pulse:
        """Returns the next chunk, or None when no event came for a while."""
        try:
            pulse = await anext(self._pulses)
        except StopAsyncIteration:
            self._ended = True
            raise
        self._ended = self._ended or (pulse is not None and pulse.final)
        return pulse

    async def beginning(self) -> list[Pulse]:
        """Returns what to send first: everything up to a worker's first event, or to the first keep-alive.

        Raises InvalidRequest, as `result` does: a prompt that cannot be answered fails before any other event.
        """
        held: list[Pulse] = []
        async for pulse in self:
            held.append(pulse)
            if pulse is None or pulse.last > LAST_OPENING_EVENT:
                break
        if held and (last := held[-1]) is not None and last.final:
            _raise_bad_prompt(await self._final_row())
        return held

    async def result(self) -> Json:
        """Waits for the end, and returns the response object.

        Raises InvalidRequest for a bad prompt, Unavailable or TimedOut for a passed deadline, and ServerFault for
        every other failure: OpenAI's API answers a failed synchronous request with an error body. Raises NotFound if
        the response was deleted while it ran.
        """
        async for pulse in self:
            if pulse is not None and pulse.final:
                break
            del pulse  # The next one may come in an hour.
        row = await self._final_row()
        if row is None:
            raise NotFound(f"Response with id '{self._id}' was deleted.", code="response_not_found")
        _raise_bad_prompt(row)
        if row.status is Status.FAILED and row.error is not None:
            code = row.error["code"]
            raise FAILURES.get(code, ServerFault)(row.error["message"], code=code)
        return row.as_object()

    async def _final_row(self) -> ResponseRow | None:
        return await retry_until_available(self._read_row)


def _raise_bad_prompt(row: ResponseRow | None) -> None:
    """Raises InvalidRequest if the response failed because of what its caller sent."""
    if row is not None and row.error is not None and row.error["code"] in BAD_PROMPT_CODES:
        code, message = row.error["code"], row.error["message"]
        raise InvalidRequest(message, field_of(message) or BAD_PROMPT_CODES[code], code)


def field_of(message: str) -> str | None:
    """Returns the field of the request that a worker's message begins with, if it begins with one."""
    found = _FIELD.match(message)
    if found is None or found.group(1) not in CreateResponse.model_fields:
        return None
    return found.group(0)
