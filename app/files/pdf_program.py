"""Reads the text of PDFs within limits: a program of its own (app/killable). Nothing else opens a caller's PDF."""

from __future__ import annotations

import encodings
import json
import logging
import os
import pkgutil
from contextlib import suppress
from importlib import import_module
from io import BytesIO
from typing import Any, BinaryIO

from app.killable.program import JobLimits, connected, serve

CPU_SECONDS = 30
WALL_SECONDS = 120
MEMORY_BYTES = 2**29
"""Bytes that a job may add to the memory of its process, the PDF included."""
MAX_PDF_BYTES = 64 * 1024**2

ENCRYPTED = "encrypted"
NO_TEXT = "no_text"
DAMAGED = "damaged"
TOO_LONG = "too_long"
TOO_COSTLY = "too_costly"


def main() -> None:
    """See app/killable/program.py."""
    control = connected()
    import pypdf

    for package in (pypdf, encodings):  # because a job can open no file
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.", onerror=lambda _: None):
            with suppress(ImportError):
                import_module(module.name)
    logging.getLogger(pypdf.__name__).setLevel(logging.CRITICAL)
    serve(control, _work, JobLimits(CPU_SECONDS, WALL_SECONDS, MEMORY_BYTES))


def _work(asked: BinaryIO, answers: BinaryIO) -> None:
    """Reads `{size, most}` and a PDF of so many bytes; answers with its text, of `most` bytes at most, or a refusal."""
    about = json.loads(asked.readline())
    data = asked.read(about["size"])
    answers.write(json.dumps(_answer(data, about["most"]), ensure_ascii=False).encode("utf-8", "replace") + b"\n")


def _answer(data: bytes, most: int) -> dict[str, Any]:
    from pypdf.errors import LimitReachedError

    try:
        return text_of(data, most)
    except MemoryError:
        os.abort()
    except LimitReachedError:
        return {"refusal": TOO_COSTLY}
    except Exception:  # a library that reads what anybody may have made
        return {"refusal": DAMAGED}


def text_of(data: bytes, most: int) -> dict[str, Any]:
    """Returns the text of all pages, or why there is none."""
    from pypdf import PdfReader

    reader = PdfReader(BytesIO(data))
    if reader.is_encrypted and not reader.decrypt(""):
        return {"refusal": ENCRYPTED}
    pages, size = [], 0
    for page in reader.pages:
        text = page.extract_text().strip()
        size += len(text.encode("utf-8", "replace")) + 2
        if size > most:
            return {"refusal": TOO_LONG}
        pages.append(text)
    return {"text": "\n\n".join(pages)} if any(pages) else {"refusal": NO_TEXT}


if __name__ == "__main__":
    main()
