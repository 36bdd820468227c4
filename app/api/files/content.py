"""The bytes of a file as an answer: all of them, or one range (the header 'Range' of RFC 9110)."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from app.aio import run_until
from app.api.errors import range_refused
from app.api.holdings import holdings_of
from app.api.sse import disconnected
from app.protocol.text import type_and_places
from app.store.database import StoreUnavailable
from app.store.files.content import FileGone
from app.store.files.rows import FileRow
from app.store.responses.lookup import Hold

log = logging.getLogger("longhaul.api")

WRITE_BYTES = 256 * 1024
"""Size of one write: less than what each connection may have waiting for nothing."""

_ONE = re.compile(r"bytes=[ \t]*([0-9]{0,19})-([0-9]{0,19})[ \t]*", re.IGNORECASE)

Read = Callable[[int, int, Hold], AsyncGenerator[bytes, None]]
"""`FileService.read` of one file."""


class NotSatisfiable(Exception):
    """The range has no byte of the content."""


@dataclass(frozen=True, slots=True)
class ByteRange:
    """The bytes from `first` to before `stop`."""

    first: int
    stop: int

    @property
    def length(self) -> int:
        return self.stop - self.first


def range_of(header: str | None, size: int) -> ByteRange | None:
    """Returns the range of a content of `size` bytes that the header asks for; None: all of it.

    A header with several ranges, or one that is no range, is ignored, as the RFC allows. Raises NotSatisfiable.
    """
    asked = None if header is None else _ONE.fullmatch(header.strip())
    if asked is None or not any(asked.groups()):
        return None
    first, last = asked.groups()
    if not first:
        if not int(last):
            raise NotSatisfiable
        return ByteRange(max(0, size - int(last)), size) if size else None
    if last and int(last) < int(first):
        return None
    if int(first) >= size:
        raise NotSatisfiable
    return ByteRange(int(first), min(size, int(last) + 1) if last else size)


def content_of(request: Request, file: FileRow, read: Read) -> Response:
    """Returns the answer to a request for the file's content."""
    headers = {
        "accept-ranges": "bytes",
        "content-disposition": f"attachment; {_named(file.filename)}",
        "content-type": "application/octet-stream",
        "etag": f'"{file.id}"',  # a file never changes
        "x-content-type-options": "nosniff",
    }
    if _has(request.headers.get("if-none-match", ""), headers["etag"]):
        return Response(status_code=304, headers={"etag": headers["etag"]})
    asked = request.headers.get("range")
    if request.headers.get("if-range", headers["etag"]) != headers["etag"]:
        asked = None
    try:
        part = range_of(asked, file.bytes)
    except NotSatisfiable:
        return range_refused(file.bytes)
    if not file.bytes:
        return Response(headers=headers)
    if part is None:
        return FileContent(200, {**headers, "content-length": str(file.bytes)}, ByteRange(0, file.bytes), read)
    headers["content-range"] = f"bytes {part.first}-{part.stop - 1}/{file.bytes}"
    headers["content-length"] = str(part.length)
    return FileContent(206, headers, part, read)


def _named(filename: str) -> str:
    """Returns the parameter with the name: `filename` where it can have it, since curl does not know `filename*`."""
    if filename.isascii() and not set(filename) & set('%"\\'):
        return f'filename="{filename}"'
    return f"filename*=UTF-8''{quote(filename, safe='')}"


def _has(condition: str, etag: str) -> bool:
    """Whether the file's tag is among those of an 'If-None-Match', which compares weakly."""
    return any(each.strip().removeprefix("W/") in ("*", etag) for each in condition.split(","))


class FileContent(Response):
    """Sends bytes, of which there are some, as they are read, and reads no further than its client takes them.

    The last of them end the answer: a client that has them may send its next request. If the file is deleted meanwhile,
    or Postgres goes away, the connection ends early: its client sees that bytes are missing.
    """

    def __init__(self, status: int, headers: dict[str, str], part: ByteRange, read: Read) -> None:
        super().__init__(status_code=status)
        self._all_headers = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        self._part = part
        self._read = read

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self._all_headers})
        await run_until(self._send(scope, send), disconnected(receive))

    async def _send(self, scope: Scope, send: Send) -> None:
        hold, left = holdings_of(scope).wait_for_answer, self._part.length
        try:
            async with aclosing(self._read(self._part.first, self._part.stop, hold)) as blocks:
                async for block in blocks:
                    for begin in range(0, len(block), WRITE_BYTES):
                        piece = block[begin : begin + WRITE_BYTES]
                        left -= len(piece)
                        await send({"type": "http.response.body", "body": piece, "more_body": left > 0})
        except (FileGone, StoreUnavailable) as error:
            log.info("a file was not sent to its end: %s", type_and_places(error))
