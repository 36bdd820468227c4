"""A form (`multipart/form-data`) with one file, read piece by piece as it comes.

Starlette's own forms write a file to the disk of the machine before the route sees it; here nothing is written but to
Postgres.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import unquote

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MAX_BOUNDARY_LENGTH, MultipartParser, parse_options_header
from starlette.requests import Request

from app.bounds import Bound
from app.heavy import off_loop
from app.protocol.errors import InvalidRequest, RequestTimeout, TooLarge, UnsupportedMedia
from app.protocol.text import shortened
from app.store.files.parts import PartWriter

MAX_FIELD_BYTES = 1024
"""Largest value of a field that is no file."""
OVERHEAD_BYTES = 64 * 1024
"""What a form may have besides the bytes of its file."""
MAX_TYPE_CHARS = 512
"""Longest header with the boundary: to parse one of 60,000 took 12 s."""
SLOW_SECONDS, SLOW_BYTES = 10.0, 256 * 1024
"""A client that is waited for so long, until it has sent so many bytes, is too slow while another project waits."""
_DISPOSITION, _ENCODING = b"content-disposition", b"content-transfer-encoding"
_EXTENDED_NAME = re.compile(r";[ \t]*filename\*[ \t]*=[ \t]*(utf-8|iso-8859-1)'[^';]*'([^;\s]*)", re.IGNORECASE)


def check_announced(request: Request, max_bytes: int) -> int | None:
    """Returns the most bytes that the file in the form can have by the header 'Content-Length'; None: nobody knows.

    Raises TooLarge and UnsupportedMedia.
    """
    if (encoding := request.headers.get("content-encoding", "identity")) != "identity":
        raise UnsupportedMedia(f"The content encoding '{shortened(encoding)}' is not supported for files; use none.")
    announced = request.headers.get("content-length", "")
    if not announced.isdecimal():
        return None
    if (size := int(announced[:20])) > max_bytes + OVERHEAD_BYTES:
        raise too_large(max_bytes)
    return min(size, max_bytes)


def too_large(max_bytes: int) -> TooLarge:
    return TooLarge(f"The file is larger than {max_bytes} bytes.")


@dataclass(slots=True)
class FileForm:
    """The form in the body of a request. `begin`, then `pieces`; then `values` has all fields, and `filename` its name.

    Both raise InvalidRequest, UnsupportedMedia, ClientDisconnect if the client leaves, and RequestTimeout if it is slow
    while `others_wait`.
    """

    request: Request
    others_wait: Callable[[], bool]
    known: Collection[str]
    """The other fields that the form may have."""
    values: dict[str, str] = field(default_factory=dict)
    filename: str | None = None
    _head: dict[bytes, str] = field(default_factory=dict)
    """The headers of the part that comes that count, by their names."""
    _pieces: list[bytes] = field(default_factory=list)
    _has_file: bool = False
    _has_ended: bool = False
    _field: str | None = None
    """Whose value comes now; None: the file's."""
    _name: bytearray = field(default_factory=bytearray)
    """Of the header that comes; `_value` is its value, and then the field's."""
    _value: bytearray = field(default_factory=bytearray)
    _stream: AsyncIterator[bytes] | None = None
    _parser: MultipartParser | None = None
    _waited: float = 0.0
    """Seconds, for `_came` bytes."""
    _came: int = 0

    async def begin(self) -> None:
        """Returns once the file begins, or at the end of the form: the fields before it are known."""
        self._parser = self._made_parser()
        self._stream = self.request.stream()
        while not self._has_file and await self._read():
            pass
        if not self._has_file:
            self._check_end()

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yields the bytes of the file."""
        while True:
            pieces, self._pieces = self._pieces, []
            for piece in pieces:
                yield piece
            if not await self._read():
                break
        for piece in self._pieces:
            yield piece
        self._check_end()

    async def _read(self) -> bool:
        """Parses what comes next, in a thread: 64 KiB of what are almost boundaries take 25 ms. Returns False at the
        end of the body."""
        assert self._parser is not None
        data = await self._next()
        if data is None:
            return False
        try:
            await off_loop(partial(self._parser.write, data), slow=True)
        except FormParserError:
            raise _malformed() from None
        return True

    async def _next(self) -> bytes | None:
        """Returns what comes next; None: nothing. The time that the server takes for it is not the client's."""
        assert self._stream is not None
        coming = asyncio.ensure_future(anext(self._stream, None))
        began = time.monotonic()
        try:
            while not coming.done():
                left = SLOW_SECONDS - self._waited - (time.monotonic() - began)
                if not (await asyncio.wait({coming}, timeout=max(left, 0)))[0]:
                    if self.others_wait():
                        raise RequestTimeout(_TOO_SLOW)
                    began, self._waited, self._came = time.monotonic(), 0.0, 0
        finally:
            coming.cancel()
        self._waited += time.monotonic() - began
        data = coming.result()
        self._came += len(data or b"")
        if self._came >= SLOW_BYTES:
            self._waited, self._came = 0.0, 0
        return data

    def _check_end(self) -> None:
        if not self._has_ended:
            raise _malformed()
        if not self._has_file:
            raise InvalidRequest("Missing required parameter: 'file'.", "file", "missing_required_parameter")

    def _made_parser(self) -> MultipartParser:
        sent = self.request.headers.get("content-type", "")
        if len(sent) > MAX_TYPE_CHARS:
            message = f"The header 'Content-Type' has {len(sent)} characters; it may have {MAX_TYPE_CHARS}."
            raise UnsupportedMedia(f"{message} Choose a shorter boundary.")
        kind, options = parse_options_header(sent)
        if kind != b"multipart/form-data":
            shown = f"'{shortened(sent)}'" if sent else "none"
            raise UnsupportedMedia(f"The content type must be 'multipart/form-data', but is {shown}.")
        boundary = options.get(b"boundary", b"")
        try:
            return MultipartParser(
                boundary,
                {
                    "on_part_begin": self._on_part_begin,
                    "on_header_field": self._on_header_name,
                    "on_header_value": self._on_header_value,
                    "on_header_end": self._on_header_end,
                    "on_headers_finished": self._on_headers_finished,
                    "on_part_data": self._on_data,
                    "on_part_end": self._on_part_end,
                    "on_end": self._on_end,
                },
            )
        except FormParserError:
            message = f"The boundary of the form has {len(boundary)} bytes; it may have {MAX_BOUNDARY_LENGTH}."
            raise InvalidRequest(message, code="invalid_form") from None

    # The parser's callbacks

    def _on_part_begin(self) -> None:
        self._head = {}

    def _on_header_name(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header_end(self) -> None:
        if (name := bytes(self._name.lower())) in (_DISPOSITION, _ENCODING):
            self._head[name] = self._value.decode("latin-1")
        self._name.clear()
        self._value.clear()

    def _on_headers_finished(self) -> None:
        _check_encoding(self._head.get(_ENCODING, "").strip())
        disposition = self._head.get(_DISPOSITION, "")
        _, options = parse_options_header(disposition)
        name = options.get(b"name", b"").decode("utf-8", "replace")
        self._check_name(name)
        self._field = None if name == "file" else name
        if self._field is None:
            self._has_file = True
            self.filename = _filename(disposition, options.get(b"filename"))

    def _check_name(self, name: str) -> None:
        shown = shortened(name)
        if name != "file" and name not in self.known:
            raise InvalidRequest(f"Unknown parameter: '{shown}'.", shown, "unknown_parameter")
        if name in self.values or (name == "file" and self._has_file):
            raise InvalidRequest(f"The form has '{shown}' twice; send it once.", shown, "invalid_value")

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        if self._field is None:
            self._pieces.append(data[start:end])
            return
        self._value += data[start:end]
        if len(self._value) > MAX_FIELD_BYTES:
            message = f"Invalid '{self._field}': expected at most {MAX_FIELD_BYTES} bytes."
            raise InvalidRequest(message, self._field, "string_above_max_length")

    def _on_part_end(self) -> None:
        if self._field is not None:
            self.values[self._field] = self._value.decode("utf-8", "replace")
            self._value.clear()

    def _on_end(self) -> None:
        self._has_ended = True


@asynccontextmanager
async def incoming(request: Request, project: str, known: Collection[str]) -> AsyncIterator[FileForm]:
    """Yields the form once it has a place and its file begins. Raises BoundReached, and what the form raises."""
    uploads: Bound = request.state.bounds.uploads
    form = FileForm(request, partial(uploads.others_wait, project), known)
    with await uploads.wait(project):
        await form.begin()
        yield form


async def received(form: FileForm, writer: PartWriter, max_bytes: int) -> None:
    """Writes the bytes of the form's file. Raises as the form does, and TooLarge."""
    async for piece in form.pieces():
        if writer.size + len(piece) > max_bytes:
            raise too_large(max_bytes)
        await writer.write(piece)


def _check_encoding(sent: str) -> None:
    """Raises UnsupportedMedia for bytes that are not as they are: no client needs that (RFC 7578)."""
    if sent.lower() not in ("", "binary", "7bit", "8bit"):
        message = f"The 'Content-Transfer-Encoding' '{shortened(sent)}' is not supported; send the bytes as they are."
        raise UnsupportedMedia(message)


def _filename(disposition: str, plain: bytes | None) -> str | None:
    """Returns the name of the file: `filename*`, else `plain`.

    RFC 7578 forbids `filename*`, but .NET sends it besides, and Rust's reqwest instead, for a name with a space, say.
    """
    if (found := _EXTENDED_NAME.search(disposition)) is not None:
        return unquote(found[2], encoding=found[1], errors="replace")
    return None if plain is None else plain.decode("utf-8", "replace")


_TOO_SLOW = f"The client sent less than {SLOW_BYTES} bytes in {SLOW_SECONDS:g} s, while others waited. Send it again."


def _malformed() -> InvalidRequest:
    message = "The body is no complete form ('multipart/form-data') with the boundary that its content type names."
    return InvalidRequest(message, code="invalid_form")
