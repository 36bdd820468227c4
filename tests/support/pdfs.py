"""PDFs for tests, written by hand: as few bytes as a PDF needs."""

from __future__ import annotations

import zlib


def pdf(*pages: str) -> bytes:
    """A PDF with one line of text on each page."""
    return _pdf([f"BT /F1 12 Tf 72 720 Td ({page}) Tj ET".encode() for page in pages])


def bomb(size: int) -> bytes:
    """A PDF whose only page is `size` bytes of nothing, compressed to a thousandth."""
    return _pdf([zlib.compress(b" " * size, 9)], compressed=True)


def endless(operations: int = 2_000_000) -> bytes:
    """A small PDF whose page takes for ever to read: nothing but text operations."""
    return _pdf([zlib.compress(b"BT /F1 12 Tf " + b"(a) Tj " * operations + b"ET", 9)], compressed=True)


def encrypted() -> bytes:
    """A PDF that nobody has the password of."""
    return _pdf([b"x"], trailer=b"/Encrypt 99 0 R /ID [<00><00>]", extra=_ENCRYPT)


_ENCRYPT = (
    b"99 0 obj\n<< /Filter /Standard /V 1 /R 2 /P -4 /O <" + b"11" * 32 + b"> /U <" + b"22" * 32 + b"> >>\nendobj\n"
)


def _pdf(contents: list[bytes], *, compressed: bool = False, trailer: bytes = b"", extra: bytes = b"") -> bytes:
    kids = b" ".join(b"%d 0 R" % (10 + 2 * number) for number in range(len(contents)))
    objects = {
        1: b"<< /Type /Catalog /Pages 2 0 R >>",
        2: b"<< /Type /Pages /Kids [%b] /Count %d >>" % (kids, len(contents)),
        3: b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    }
    for number, content in enumerate(contents):
        page, stream = 10 + 2 * number, 11 + 2 * number
        objects[page] = (
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents %d 0 R "
            b"/Resources << /Font << /F1 3 0 R >> >> >>" % stream
        )
        filters = b" /Filter /FlateDecode" if compressed else b""
        objects[stream] = b"<< /Length %d%b >>\nstream\n%b\nendstream" % (len(content), filters, content)
    body, places = b"%PDF-1.4\n", {}
    for number, value in objects.items():
        places[number] = len(body)
        body += b"%d 0 obj\n%b\nendobj\n" % (number, value)
    if extra:
        places[99] = len(body)
        body += extra
    start = len(body)
    body += b"xref\n0 1\n0000000000 65535 f \n"
    for number, place in places.items():
        body += b"%d 1\n%010d 00000 n \n" % (number, place)
    body += b"trailer\n<< /Size 100 /Root 1 0 R %b >>\nstartxref\n%d\n%%%%EOF\n" % (trailer, start)
    return body
