"""Reads the body of an answer up to a limit, and says how its text is encoded."""

from __future__ import annotations

import asyncio
import codecs
import re
import zlib
from collections.abc import AsyncIterator, Iterator

from app.fetching.errors import FetchError

STEP_BYTES = 256 * 1024
"""The bytes that are decompressed at once: it takes a millisecond."""
_CHARSET = re.compile(r"charset\s*=\s*[\"']?([\w:-]{1,40})", re.IGNORECASE)
_ANSI = {"iso8859-1": "cp1252", "ascii": "cp1252"}
"""Browsers read these as windows-1252."""
_NO_CHARSETS = frozenset({"idna", "punycode", "undefined", "unicode_escape", "raw_unicode_escape"})
_GZIP_OR_ZLIB = 47


async def read_body(chunks: AsyncIterator[bytes], encoding: str, limit: int) -> bytes:
    """The decompressed body, truncated after `limit` bytes; a small body never expands beyond that.

    `encoding` is the Content-Encoding. Raises FetchError for one that was not requested, and for a damaged body.
    """
    body = bytearray()
    unpack = _unpacker(encoding.strip().lower())
    async for chunk in chunks:
        for piece in _unpacked(unpack, chunk) if unpack else (chunk,):
            body += piece
            if len(body) >= limit:
                return bytes(body[:limit])
            await asyncio.sleep(0)  # Others of this process go on.
        if unpack and unpack.eof:  # Whatever follows belongs to no body, and may have no end.
            break
    return bytes(body)


def _unpacker(encoding: str) -> zlib._Decompress | None:
    if encoding in ("", "identity"):
        return None
    if encoding in ("gzip", "x-gzip", "deflate"):
        return zlib.decompressobj(_GZIP_OR_ZLIB)
    raise FetchError("The answer came in a compression that was not asked for.")


def _unpacked(unpack: zlib._Decompress, chunk: bytes) -> Iterator[bytes]:
    try:
        while piece := unpack.decompress(chunk, STEP_BYTES):
            yield piece
            chunk = unpack.unconsumed_tail
    except zlib.error:
        raise FetchError("The answer came damaged.") from None


def codec_of(content_type: str) -> str | None:
    """Python's name of the charset that a Content-Type names; None if it names none that pages use."""
    named = _CHARSET.search(content_type)
    return text_codec(named[1]) if named else None


def text_codec(charset: str) -> str | None:
    """Python's name of a charset; None if it is not known, or is no encoding of text."""
    try:
        b"  ".decode(charset, "replace")  # refuses codecs that do not decode text, such as bz2
        codec = codecs.lookup(charset)
    except (LookupError, ValueError):
        return None
    # Python has codecs of text that no page uses.
    if codec.name.replace("-", "_") in _NO_CHARSETS:
        return None
    return _ANSI.get(codec.name, codec.name)
