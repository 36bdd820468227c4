"""Reading the body of a request, up to a limit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from starlette.requests import Request

from app.api.holdings import holdings_of
from app.heavy import beside_loop
from app.protocol.errors import TooLarge, UnsupportedMedia
from app.protocol.requests.bodies.request import ResponseRequest, checked_request
from app.protocol.requests.strict_json import decode_object
from app.protocol.requests.tools.omitted import omit_tools
from app.protocol.requests.validation import Model, validate
from app.protocol.text import shortened
from config.settings import Settings

T = TypeVar("T")


async def read_request(
    request: Request, settings: Settings, as_request: Callable[[Mapping[str, Any]], ResponseRequest] = checked_request
) -> ResponseRequest:
    """Returns the request in the body; `as_request` makes it from the JSON object of another endpoint.

    Raises InvalidRequest, TooLarge and UnsupportedMedia.
    """
    _check_media_type(request)
    body = await read_body(request, settings.max_body_bytes)

    def decoded() -> ResponseRequest:
        return replace(as_request(omit_tools(decode_object(body), settings.omit_tools)), size=len(body))

    return await _decoded(request, decoded, body)


async def read_body_as(
    model: type[Model], request: Request, settings: Settings, *, may_be_empty: bool = False
) -> Model:
    """Returns the body as a `model`. Raises InvalidRequest, TooLarge and UnsupportedMedia."""
    body = await read_body(request, settings.max_body_bytes)
    if may_be_empty and not body:
        return validate(model, {})
    _check_media_type(request)
    return await _decoded(request, lambda: validate(model, omit_tools(decode_object(body), settings.omit_tools)), body)


async def _decoded(request: Request, decode: Callable[[], T], body: bytes) -> T:
    await holdings_of(request.scope).accept(len(body))
    return await beside_loop(decode, len(body))


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Returns the body, whatever length its headers claim.

    Its bytes count as held by its project until `release_body`; `body_bytes` in the request's state is how many they
    are. Raises TooLarge and BoundReached.
    """
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced) > max_bytes:
        raise _too_large(max_bytes)
    body, holding = bytearray(), holdings_of(request.scope).body()
    async for piece in request.stream():
        body += piece
        if len(body) > max_bytes:
            raise _too_large(max_bytes)
        holding.resize(len(body))
    request.state.body_bytes = len(body)
    return bytes(body)


def _too_large(max_bytes: int) -> TooLarge:
    return TooLarge(f"The body is larger than {max_bytes} bytes.")


def _check_media_type(request: Request) -> None:
    sent = request.headers.get("content-type", "")
    media_type = sent.split(";", 1)[0].strip().lower()
    if media_type != "application/json" and not (
        media_type.startswith("application/") and media_type.endswith("+json")
    ):
        shown = f"'{shortened(sent)}'" if sent else "none"
        raise UnsupportedMedia(f"The content type must be 'application/json', but is {shown}.")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise UnsupportedMedia(f"The content encoding '{shortened(encoding)}' is not supported; use none.")
