"""The errors of files, as clients read them."""

from __future__ import annotations

from app.protocol.errors import InvalidRequest, NotFound
from app.protocol.text import shortened


def no_such_file(file_id: str, param: str | None = None) -> NotFound:
    """`param`: the field of the request that names it."""
    return NotFound(f"File with id '{shortened(file_id)}' not found.", param, "file_not_found")


def file_in_use() -> InvalidRequest:
    message = "A batch that has not ended reads the file. Cancel the batch first, or wait for its end."
    return InvalidRequest(message, "file_id", "file_in_use")


def part_gone() -> InvalidRequest:
    message = "What was sent so far was given up, because nothing came for too long. Send it again."
    return InvalidRequest(message, code="upload_ended")


def refused(where: str, code: str, what: str) -> InvalidRequest:
    """`where`: the field of the request with the file."""
    return InvalidRequest(f"Invalid '{where}': {what}.", where, code)
