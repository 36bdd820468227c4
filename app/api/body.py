"""Reading the body of a request, up to a limit."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from io import BytesIO
from typing import Any, TypeVar

import zstandard
from starlette.requests import Request

from app.api.holdings import holdings_of
from app.bounds import Holding
from app.heavy import off_loop
from app.protocol.errors import InvalidRequest, TooLarge, UnsupportedMedia
from app.protocol.requests.bodies.request import ResponseRequest
from app.protocol.requests.strict_json import decode_object
from app.protocol.requests.tools.omitted import omit_tools
from app.protocol.requests.validation import Model, validate
from app.protocol.text import shortened
from app.sizes import parsed_size
from config.settings import Settings

T = TypeVar("T")
AnyRequest = TypeVar("AnyRequest", bound=ResponseRequest)

ZSTD_WINDOW_BYTES = 8 * 1024 * 1024
"""More than RFC 9659 allows is refused: a few bytes can ask for gigabytes."""
STEP_BYTES = 256 * 1024
"""What is decompressed at once: a millisecond."""


def _inflated(body: bytes | bytearray) -> Iterator[bytes]:
    inflater = zlib.decompressobj(zlib.MAX_WBITS | 32)
    while not inflater.eof:
        piece = inflater.decompress(body, STEP_BYTES)
        body = inflater.unconsumed_tail
        if inflater.unused_data or not (piece or inflater.eof):
            raise zlib.error("there is more than one stream, or less")
        yield piece


def _unpacked(body: bytes | bytearray) -> Iterator[bytes]:
    decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES)
    reader = decompressor.stream_reader(BytesIO(body), read_across_frames=True)
    yield from iter(partial(reader.read, STEP_BYTES), b"")


_ENCODINGS = {"gzip": _inflated, "deflate": _inflated, "zstd": _unpacked}


async def read_request(
    request: Request, settings: Settings, as_request: Callable[[Mapping[str, Any]], AnyRequest]
) -> AnyRequest:
    """Returns the request in the body; `as_request` makes it from the JSON object of another endpoint.

    Raises InvalidRequest, TooLarge and UnsupportedMedia.
    """
    _check_media_type(request)
    body = await read_body(request, settings.max_body_bytes)

    def decoded() -> AnyRequest:
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
    await holdings_of(request.scope).accept(await off_loop(partial(parsed_size, body), len(body)))
    return await off_loop(decode, len(body))


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Returns the body, decompressed, whatever length its headers claim.

    Its bytes count as held by its project until `release_body`; `body_bytes` in the request's state is how many they
    are. Raises TooLarge and BoundReached; for its encoding, UnsupportedMedia and InvalidRequest.
    """
    encoding = _encoding(request)
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced) > max_bytes:
        raise _too_large(max_bytes)
    body, holding = bytearray(), holdings_of(request.scope).body()
    async for piece in request.stream():
        body += piece
        if len(body) > max_bytes:
            raise _too_large(max_bytes)
        holding.resize(len(body))
    if encoding is not None and body:
        body = await _decompressed(body, encoding, holding, max_bytes)
    request.state.body_bytes = len(body)
    return bytes(body)


async def _decompressed(sent: bytearray, encoding: str, holding: Holding, max_bytes: int) -> bytearray:
    """Returns the body, which is decompressed in steps: no more than a step too much is ever in memory."""
    step, body = partial(next, _ENCODINGS[encoding](sent), b""), bytearray()
    try:
        while piece := await off_loop(step, len(sent) + len(body)):
            body += piece
            if len(body) > max_bytes:
                raise _too_large(max_bytes)
            holding.resize(len(sent) + len(body))
        if not body:  # zstd says nothing of an end that comes too early.
            raise zstandard.ZstdError
    except (zlib.error, zstandard.ZstdError):
        message = f"The body is no complete '{encoding}' stream, which the header 'Content-Encoding' says it is."
        raise InvalidRequest(message, code="invalid_encoding") from None
    holding.resize(len(body))
    return body


def _encoding(request: Request) -> str | None:
    """Returns how the body is compressed. Raises UnsupportedMedia."""
    sent = ", ".join(request.headers.getlist("content-encoding")).strip().lower()
    encoding = sent.removeprefix("x-")
    if encoding in ("", "identity"):
        return None
    if encoding not in _ENCODINGS:
        known = ", ".join(f"'{name}'" for name in _ENCODINGS)
        raise UnsupportedMedia(f"The content encoding '{shortened(sent)}' is not supported; use {known}, or none.")
    return encoding


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
