"""The text of a document: of a PDF as pypdf reads it, of everything else as it is, if it is text.

What a document is, its bytes say, not its name: clients send source code under any name.
"""

from __future__ import annotations

import codecs
import json
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from functools import partial
from typing import Any

from app.bounds import Bound
from app.files import pdf_program
from app.files.pdf_program import (
    CPU_SECONDS,
    DAMAGED,
    ENCRYPTED,
    MAX_PDF_BYTES,
    MEMORY_BYTES,
    NO_TEXT,
    TOO_COSTLY,
    TOO_LONG,
    WALL_SECONDS,
)
from app.heavy import off_loop
from app.killable.jobs import AT_A_LIMIT, TOO_LATE, KillableProgram, ProgramClosed, ProgramFailed, code_of
from app.protocol.errors import InvalidRequest, Unavailable
from app.protocol.text import shortened

log = logging.getLogger("longhaul.api")

PLACES = 2
"""PDFs at once. A project holds one of them at most, so another one's finds a place or the next turn."""
ATTEMPTS = 2
"""How often a PDF is read whose process is ended from outside."""
_PDF = b"%PDF-"
_HEAD_BYTES = 1024
"""Within which a PDF says that it is one."""
_ESCAPED = 6
"""How many times longer a text may be as JSON."""
_CODE = code_of(pdf_program.__name__)
_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))

_REFUSALS = {
    ENCRYPTED: ("file_encrypted", "it is encrypted; send it without a password"),
    NO_TEXT: ("file_without_text", "it has no text; send scanned pages as images ('input_image')"),
    DAMAGED: ("invalid_file", "it cannot be read as a PDF"),
    TOO_COSTLY: (
        "file_too_costly",
        f"it takes more than {CPU_SECONDS} seconds of CPU time or {MEMORY_BYTES // 2**20} MiB; send fewer pages",
    ),
}

Read = Callable[[], AsyncGenerator[bytes, None]]
"""Reads a file from its beginning, piece by piece."""


class DocumentReader:
    """Reads documents. A text of more than `most_bytes` is refused."""

    def __init__(self, most_bytes: int, *, shares: bool) -> None:
        self.most_bytes = most_bytes
        self.bound = Bound("PDFs", PLACES, shares=shares)
        self._program = KillableProgram("PDFs", lambda: _CODE)

    def close(self) -> None:
        """Blocks."""
        self._program.close()

    async def text_of(
        self, project: str, name: str, size: int, read: Read, where: str, codec: str | None = None
    ) -> str:
        """Returns the text of a document of `size` bytes, called `name`, which `read` reads.

        `codec` is Python's name of the charset that a server says it has, if it is no UTF-8. Raises InvalidRequest for
        the field `where`, Unavailable, and what `read` raises.
        """
        async with aclosing(read()) as pieces:
            body = bytearray(await anext(pieces, b""))
            is_pdf = _PDF in body[:_HEAD_BYTES]
            if not is_pdf:
                if size > self.most_bytes:
                    raise _too_long(where, name, self.most_bytes)
                async for piece in pieces:
                    body += piece
        if not is_pdf:
            return await off_loop(partial(_decoded, body, name, where, codec), size)
        if size > MAX_PDF_BYTES:
            raise _refused(where, name, "file_too_large", f"a PDF may have {MAX_PDF_BYTES} bytes, and it has {size}")
        with await self.bound.wait(project):
            return self._text(await self._answer(name, size, read, where), name, where)

    async def _answer(self, name: str, size: int, read: Read, where: str) -> Mapping[str, Any]:
        about = json.dumps({"size": size, "most": self.most_bytes}).encode() + b"\n"
        for _ in range(ATTEMPTS):
            try:
                async with aclosing(_job(about, read)) as job:
                    answers, status = await self._program.ask(job, 1, _ESCAPED * self.most_bytes + _HEAD_BYTES)
            except (ProgramClosed, ProgramFailed):
                raise Unavailable("The server cannot read PDFs at the moment; send the request again.") from None
            if answers:
                return answers[0]
            if status in AT_A_LIMIT:
                raise _refused(where, name, *_REFUSALS[TOO_COSTLY])
            if status == TOO_LATE:
                break
            log.warning("the process that reads PDFs was ended from outside (status %s)", status)
        message = f"The machine is too busy to read a PDF within {WALL_SECONDS} seconds; send the request again."
        raise Unavailable(message)

    def _text(self, answer: Mapping[str, Any], name: str, where: str) -> str:
        if (refusal := answer.get("refusal")) == TOO_LONG:
            raise _too_long(where, name, self.most_bytes)
        if refusal is not None:
            raise _refused(where, name, *_REFUSALS[refusal])
        text: str = answer["text"]
        return text.replace("\0", "\ufffd")


async def _job(about: bytes, read: Read) -> AsyncGenerator[bytes, None]:
    yield about
    async with aclosing(read()) as pieces:
        async for piece in pieces:
            yield piece


def _decoded(body: bytearray, name: str, where: str, codec: str | None) -> str:
    mark, charset = next((each for each in _BOMS if body.startswith(each[0])), (b"", "utf-8"))
    if not mark and b"\0" in body:
        advice = "it is no text and no PDF; send its text, or a picture of it as 'input_image'"
        raise _refused(where, name, "unsupported_file", advice)
    for each in (charset,) if mark or codec is None else (charset, codec):
        with suppress(UnicodeError):
            return body[len(mark) :].decode(each).replace("\0", "\ufffd")
    raise _refused(where, name, "invalid_encoding", "it is neither a PDF nor text in UTF-8")


def _too_long(where: str, name: str, most: int) -> InvalidRequest:
    return _refused(where, name, "file_too_large", f"its text may have {most} bytes, and has more")


def _refused(where: str, name: str, code: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"Invalid '{where}': the file '{shortened(name)}' cannot be used: {what}.", where, code)
