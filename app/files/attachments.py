"""Files in the parts of items: their text, or their picture, takes its place in the item before the request is stored.

So a prompt is the same at each attempt, and in each response that continues it, whatever becomes of the file; and what
a file costs is known when the request is accepted (docs/internals/decisions/attachments.md).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from pydantic_core import PydanticCustomError

from app.bounds import Bound
from app.files.documents import DocumentReader
from app.files.errors import no_such_file
from app.heavy import off_loop
from app.ids import may_exist
from app.protocol.errors import InvalidRequest
from app.protocol.requests.items.images import check_data_url, media_type_of
from app.protocol.types import Json
from app.store.database import Database
from app.store.files import content, files
from app.store.files.content import FileGone
from app.store.files.rows import FileRow

MAX_FILES = 100
"""Parts of one request that are files."""
_PURPOSES = {"input_file": ("user_data",), "input_image": ("user_data", "vision")}


@dataclass(frozen=True, slots=True)
class _Attachment:
    """A part that is a file."""

    place: tuple[int, str, int]
    """The item's index, its field, the part's index in it."""
    part: Json
    param: str

    @property
    def where(self) -> str:
        index, field, part = self.place
        return f"{self.param}[{index}].{field}[{part}]"


class Attachments:
    """Puts what files say into the items that name them."""

    def __init__(self, db: Database, documents: DocumentReader, most_bytes: int, *, shares: bool) -> None:
        """`most_bytes`: of what the files of one request become, and of those of all requests at once."""
        self._db = db
        self._documents = documents
        self._most_bytes = most_bytes
        self.bound = Bound("attachments", most_bytes, unit="bytes of ", shares=shares)

    async def attach(self, project: str, items: Sequence[Json], held: ExitStack, param: str) -> tuple[list[Json], int]:
        """Returns the items with the text or the picture of each file, and the bytes that these have.

        What files bring in waits for room before it is read, and counts until the end of `held`. Raises NotFound for a
        file that the project does not have, InvalidRequest for one that cannot be used, and StoreUnavailable.
        """
        found = list(_attachments(items, param))
        if not found:
            return list(items), 0
        if len(found) > MAX_FILES:
            raise _refused(found[MAX_FILES].where, "too_many_files", f"a request may have {MAX_FILES} files")
        rows = {each.place: await self._row(project, each) for each in found if "file_data" not in each.part}
        expected = min(self._most_bytes, sum(_expected(each, rows.get(each.place)) for each in found))
        holding = held.enter_context(await self.bound.wait(project, expected))
        made: dict[tuple[int, str, int], Json] = {}
        brought = 0
        for each in found:
            part, size = await self._read(project, each, rows.get(each.place))
            brought += size
            if brought > self._most_bytes:
                raise _refused(
                    each.where, "files_too_large", f"the files of a request may bring in {self._most_bytes} bytes"
                )
            made[each.place] = part
        holding.resize(brought)
        return _replaced(items, made), brought

    async def _row(self, project: str, attachment: _Attachment) -> FileRow:
        file_id, where = attachment.part["file_id"], f"{attachment.where}.file_id"
        row = await files.get(self._db, project, file_id) if may_exist(file_id) else None
        if row is None:
            raise no_such_file(file_id, where)
        purposes = _PURPOSES[attachment.part["type"]]
        if row.purpose not in purposes:
            named = " or ".join(f"'{purpose}'" for purpose in purposes)
            raise _refused(where, "invalid_purpose", f"the file's purpose is '{row.purpose}'; upload it as {named}")
        return row

    async def _read(self, project: str, attachment: _Attachment, row: FileRow | None) -> tuple[Json, int]:
        """Returns the part as it is stored, and the bytes that the file brought into it."""
        part = attachment.part
        if row is None:
            return await self._read_data(project, attachment)
        where = f"{attachment.where}.file_id"
        read = partial(content.read, self._db, project, row.id, 0, row.bytes)
        try:
            if part["type"] == "input_image":
                if row.bytes > self._most_bytes * 3 // 4:
                    raise _refused(where, "image_too_large", f"an image may have {self._most_bytes * 3 // 4} bytes")
                body = b"".join([piece async for piece in read()])
                url = await off_loop(partial(_image_url, body, where), len(body))
                return {**part, "image_url": url}, len(url)
            text = await self._documents.text_of(project, row.filename, row.bytes, read, where)
        except FileGone:
            raise no_such_file(row.id, where) from None
        return {**part, "filename": part.get("filename") or row.filename, "text": text}, len(text.encode())

    async def _read_data(self, project: str, attachment: _Attachment) -> tuple[Json, int]:
        part, where = attachment.part, f"{attachment.where}.file_data"
        data = await off_loop(partial(_data_in, part["file_data"], where), len(part["file_data"]))
        text = await self._documents.text_of(project, part["filename"], len(data), partial(_once, data), where)
        kept = {name: value for name, value in part.items() if name != "file_data"}
        return {**kept, "text": text}, len(text.encode())


def _attachments(items: Sequence[Json], param: str) -> Iterator[_Attachment]:
    """Yields the parts whose files are to be read."""
    for index, item in enumerate(items):
        for field in ("content", "output"):
            parts = item.get(field)
            for place, part in enumerate(parts if isinstance(parts, list) else ()):
                if _is_unread(part):
                    yield _Attachment((index, field, place), part, param)


def _is_unread(part: Json) -> bool:
    kind = part.get("type")
    return (kind == "input_file" and "text" not in part) or (kind == "input_image" and "image_url" not in part)


def _expected(attachment: _Attachment, row: FileRow | None) -> int:
    """The bytes that a file will bring in, or more."""
    if row is None:
        return len(attachment.part["file_data"])
    return row.bytes * 4 // 3 + 100 if attachment.part["type"] == "input_image" else row.bytes


def _replaced(items: Sequence[Json], made: Mapping[tuple[int, str, int], Json]) -> list[Json]:
    replaced = list(items)
    for (index, field, place), part in made.items():
        item = replaced[index]
        replaced[index] = {**item, field: [*item[field][:place], part, *item[field][place + 1 :]]}
    return replaced


def _image_url(body: bytes, where: str) -> str:
    kind = media_type_of(body)
    url = f"data:{kind or 'image/png'};base64,{base64.b64encode(body).decode()}"
    try:
        check_data_url(url)
    except PydanticCustomError as error:
        context = error.context or {}
        raise InvalidRequest(context["message"].replace("{path}", where), where, context["code"]) from None
    return url


def _data_in(sent: str, where: str) -> bytes:
    """Returns the bytes of a data URL, or of base64 alone."""
    head, comma, rest = sent.partition(",")
    is_url = sent.startswith("data:")
    if is_url and not (comma and head.endswith(";base64")):
        raise _refused(where, "invalid_value", "expected a data URL in base64 ('data:application/pdf;base64,...')")
    try:
        return base64.b64decode(rest if is_url else sent, validate=True)
    except (binascii.Error, ValueError):
        raise _refused(where, "invalid_base64", "expected valid base64, as a data URL or alone") from None


async def _once(piece: bytes) -> AsyncGenerator[bytes, None]:
    yield piece


def _refused(where: str, code: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"Invalid '{where}': {what}.", where, code)
