"""Reading a request's body, with a limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from starlette.requests import Request

from app.protocol.errors import TooLarge, UnsupportedMedia
from app.protocol.requests.request import ResponseRequest, parse_request
from app.protocol.requests.strict_json import decode_object
from app.protocol.requests.validation import Model, validate
from app.protocol.text import shortened

T = TypeVar("T")

_LARGE_BYTES = 256 * 1024


async def read_request(request: Request, limit: int) -> ResponseRequest:
    """The request that was sent, of at most `limit` bytes. Raises InvalidRequest, TooLarge, UnsupportedMedia."""
    _check_media_type(request)
    body = await read_body(request, limit)
    return await _decoded(lambda: parse_request(body), body)


async def read_derived(request: Request, limit: int, derive: Callable[[Mapping[str, Any]], T]) -> T:
    """What `derive` makes of the JSON object that was sent. Raises InvalidRequest, TooLarge, UnsupportedMedia."""
    _check_media_type(request)
    body = await read_body(request, limit)
    return await _decoded(lambda: derive(decode_object(body)), body)


async def read_body_as(model: type[Model], request: Request, limit: int, *, may_be_empty: bool = False) -> Model:
    """The body as a `model`. Raises InvalidRequest, TooLarge, UnsupportedMedia."""
    body = await read_body(request, limit)
    if may_be_empty and not body:
        return validate(model, {})
    _check_media_type(request)
    return await _decoded(lambda: validate(model, decode_object(body)), body)


async def _decoded(decode: Callable[[], T], body: bytes) -> T:
    """Large bodies are not for the event loop."""
    return decode() if len(body) < _LARGE_BYTES else await asyncio.to_thread(decode)


async def read_body(request: Request, limit: int) -> bytes:
    """The body, of at most `limit` bytes, whatever its headers say. Raises TooLarge."""
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced) > limit:
        raise _too_large(limit)
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > limit:
            raise _too_large(limit)
    return bytes(body)


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"The body is larger than {limit} bytes.")


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
        raise UnsupportedMedia(f"The content encoding '{shortened(encoding)}' is not supported.")
