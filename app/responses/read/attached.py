"""A foreground response, as its client gets it while it stays connected.

subscribe -> insert, commit -> message -> events up to the end | the client leaves -> cancelled
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from functools import partial

import orjson

from app.protocol.errors import InvalidRequest, NotFound
from app.protocol.events.chunk import LAST_OPENING_EVENT
from app.protocol.failures import failure
from app.protocol.limits import Allowance
from app.protocol.status import Status
from app.protocol.types import Json
from app.responses.paging import Encoded
from app.responses.read.reader import Pulse
from app.store.database import Database, retry_until_available
from app.store.responses import lookup
from app.store.responses.lookup import Hold
from app.store.rows import ResponseRow


class AttachedResponse:
    """The events and the result of a response whose client waits for it. `ResponseService.attach` makes it.

    `abandon` cancels it in the background.
    """

    def __init__(
        self,
        db: Database,
        project: str,
        response_id: str,
        pulses: AsyncGenerator[Pulse, None],
        abandon: Callable[[], None],
        allowance: Allowance | None = None,
    ) -> None:
        self.allowance = allowance
        """What the limits of the project leave; None: it has none, or the response was created before."""
        self.id = response_id
        self._db = db
        self._project = project
        self._pulses = pulses
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
            if pulse is None or pulse.first > pulse.last or pulse.last > LAST_OPENING_EVENT:
                break
        if held and (last := held[-1]) is not None and last.final:
            found = await retry_until_available(partial(lookup.find_status, self._db, self.id))
            _raise_bad_prompt(None if found is None else found[1])
        return held

    async def result(self, shape: Callable[[Json], Json], hold: Hold) -> Encoded:
        """Waits for the end, and returns what `shape` makes of the response; a large one once `hold` has room for it.

        Raises InvalidRequest for a bad prompt, Unavailable or TimedOut for a passed deadline, and ServerFault for
        every other failure: OpenAI's API answers a failed synchronous request with an error body. Raises NotFound if
        the response was deleted while it ran.
        """
        async for pulse in self:
            if pulse is not None and pulse.final:
                break
            del pulse  # The next one may come in an hour.

        def encoded(row: ResponseRow) -> Encoded:
            if row.status is Status.FAILED and row.error is not None:
                raise failure(row.error)
            return orjson.dumps(shape(row.as_object()))

        show = partial(lookup.show, self._db, self._project, self.id, encoded, hold)
        if (result := await retry_until_available(show)) is None:
            raise NotFound(f"Response with id '{self.id}' was deleted.", code="response_not_found")
        return result


def _raise_bad_prompt(error: Json | None) -> None:
    """Raises InvalidRequest if the response failed because of what its caller sent."""
    if error is not None and isinstance(raised := failure(error), InvalidRequest):
        raise raised
