"""Answers that are made of a response which nobody sees: token counts, and compactions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from app.protocol.errors import ServerFault, Unavailable
from app.protocol.requests.derived import compaction, summary_of
from app.protocol.status import Status
from app.protocol.types import Json
from app.store.sealing import SealedKind, Sealer

Shape = Callable[[Json], Awaitable[Json]]
"""A final response -> the body of the answer. Raises a ApiError."""


async def as_it_is(response: Json) -> Json:
    return response


async def input_tokens(response: Json) -> Json:
    """openai's InputTokenCountResponse."""
    _check(response)
    return {"object": "response.input_tokens", "input_tokens": response["usage"]["input_tokens"]}


def compacted(get_seal: Callable[[], Awaitable[Sealer]]) -> Shape:
    """openai's CompactedResponse, of a response that is a summary."""

    async def shape(response: Json) -> Json:
        _check(response)
        seal = await get_seal()
        return compaction(response, seal.seal(SealedKind.COMPACTION, summary_of(response)))

    return shape


def _check(response: Json) -> None:
    """Raises Unavailable where it was cancelled (this server stops), ServerFault where it was cut."""
    status = Status(response["status"])
    if status is Status.CANCELLED:
        raise Unavailable("The work on this request was cancelled; try again.")
    if status is not Status.COMPLETED:
        raise ServerFault("The model's context is too small for this.", "input", "context_length_exceeded")
