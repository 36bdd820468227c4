"""The text of a document: of a PDF as pypdf reads it, of everything else as it is, if it is text.

What a document is, its bytes say, not its name: clients send source code under any name.
"""

from __future__ import annotations

import codecs
import json
import logging
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
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
from app.killable.jobs import AT_A_LIMIT, TOO_LATE, KillableProgram, ProgramClosed, ProgramFailed
from app.protocol.errors import InvalidRequest, Unavailable
from app.protocol.text import shortened
from config.process import code_running

log = logging.getLogger("longhaul.api")

PLACES = 2
"""PDFs at once. A project holds one of them at most, so another one's finds a place or the next turn."""
ATTEMPTS = 2
"""How often a PDF is read whose process is ended from outside."""
_PDF = b"%PDF-"
_PDF_HEADER = re.compile(rb"(?:\xef\xbb\xbf)?\s*%PDF-\d\.\d\s*[\r\n%]")
"""A line that a PDF begins with. One that a sentence goes on in is a text about PDFs."""
_HEAD_BYTES = 1024
"""Within which a PDF says that it is one."""
_ESCAPED = 6
"""How many times longer a text may be as JSON."""
_CODE = code_running(pdf_program.__name__)
_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # begins with UTF-16's
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)

_REFUSALS = {
    ENCRYPTED: ("file_encrypted", "it is encrypted; send it without a password"),
    NO_TEXT: ("file_without_text", "it has no text; send scanned pages as images ('input_image')"),
    DAMAGED: ("invalid_file", "it cannot be read as a PDF"),
    TOO_COSTLY: (
        "file_too_costly",
        f"it takes more than {CPU_SECONDS} seconds of CPU time or {MEMORY_BYTES // 2**20} MiB; send fewer pages",
    ),
}

Read = Callable[[int], AsyncGenerator[bytes, None]]
"""Reads so many bytes of a file from its beginning, piece by piece."""


@dataclass(frozen=True, slots=True)
class Document:
    """A file that a request names."""

    name: str
    size: int
    read: Read
    where: str
    """The field that names it."""
    codec: str | None = None
    """Python's name of the charset that a server says it has, if it is no UTF-8."""

    async def head(self) -> bytes:
        """Returns its first bytes, in which a PDF says that it is one."""
        return b"".join([piece async for piece in self.read(min(self.size, _HEAD_BYTES))])

    async def body(self) -> bytearray:
        body = bytearray()
        async with aclosing(self.read(self.size)) as pieces:
            async for piece in pieces:
                body += piece
        return body

    def refused(self, code: str, what: str) -> InvalidRequest:
        message = f"Invalid '{self.where}': the file '{shortened(self.name)}' cannot be used: {what}."
        return InvalidRequest(message, self.where, code)


class DocumentReader:
    """Reads documents. A text of more than `most_bytes` is refused."""

    def __init__(self, most_bytes: int, *, shares: bool) -> None:
        self.most_bytes = most_bytes
        self.bound = Bound("PDFs", PLACES, shares=shares)
        self._program = KillableProgram("PDFs", lambda: _CODE)

    def close(self) -> None:
        """Blocks."""
        self._program.close()

    async def text_of(self, document: Document) -> str:
        """Returns the text of a document that is no PDF. Raises InvalidRequest for its field, and what `read` does."""
        if document.size > self.most_bytes:
            raise self._too_long(document)
        return await off_loop(partial(_decoded, await document.body(), document), document.size)

    async def text_of_pdf(self, pdf: Document) -> str:
        """The same for a PDF, for which the caller holds a place of `bound`. Raises Unavailable, too."""
        if pdf.size > MAX_PDF_BYTES:
            message = f"a PDF may have {MAX_PDF_BYTES} bytes, and it has {pdf.size}"
            raise pdf.refused("file_too_large", message)
        answer = await self._answer(pdf)
        if (refusal := answer.get("refusal")) == TOO_LONG:
            raise self._too_long(pdf)
        if refusal is not None:
            raise pdf.refused(*_REFUSALS[refusal])
        text: str = answer["text"]
        return text.replace("\0", "\ufffd")

    async def _answer(self, pdf: Document) -> Mapping[str, Any]:
        about = json.dumps({"size": pdf.size, "most": self.most_bytes}).encode() + b"\n"
        for _ in range(ATTEMPTS):
            try:
                async with aclosing(_job(about, pdf)) as job:
                    answers, status = await self._program.ask(job, 1, _ESCAPED * self.most_bytes + _HEAD_BYTES)
            except (ProgramClosed, ProgramFailed):
                raise Unavailable("The server cannot read PDFs at the moment; send the request again.") from None
            if answers:
                return answers[0]
            if status in AT_A_LIMIT:
                raise pdf.refused(*_REFUSALS[TOO_COSTLY])
            if status == TOO_LATE:
                break
            log.warning("the process that reads PDFs was ended from outside (status %s)", status)
        message = f"The machine is too busy to read a PDF within {WALL_SECONDS} seconds; send the request again."
        raise Unavailable(message)

    def _too_long(self, document: Document) -> InvalidRequest:
        return document.refused("file_too_large", f"its text may have {self.most_bytes} bytes, and has more")


def is_pdf(head: bytes) -> bool:
    """Whether a file with this beginning is a PDF: other bytes may stand before its header, but no text."""
    return _PDF_HEADER.match(head) is not None or (_PDF in head and not _is_text(head))


def _is_text(head: bytes) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeError:
        return False
    return b"\0" not in head


async def _job(about: bytes, pdf: Document) -> AsyncGenerator[bytes, None]:
    yield about
    async with aclosing(pdf.read(pdf.size)) as pieces:
        async for piece in pieces:
            yield piece


def _decoded(body: bytearray, document: Document) -> str:
    codec = document.codec
    mark, charset = next((each for each in _BOMS if body.startswith(each[0])), (b"", "utf-8"))
    if not mark and b"\0" in body:
        advice = "it is no text and no PDF; send its text, or a picture of it as 'input_image'"
        raise document.refused("unsupported_file", advice)
    for each in (charset,) if mark or codec is None else (charset, codec):
        with suppress(UnicodeError):
            return body[len(mark) :].decode(each).replace("\0", "\ufffd")
    raise document.refused("invalid_encoding", "it is neither a PDF nor text in UTF-8")
