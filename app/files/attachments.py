"""Files in the parts of items: their text, or their picture, takes its place in the item before the request is stored.

So a prompt is the same at each attempt, and in each response that continues it, whatever becomes of the file or of what
is at a URL; and what a file costs is known when the request is accepted (docs/internals/decisions/attachments.md).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

from pydantic_core import PydanticCustomError

from app.bounds import Bound
from app.fetching.body import codec_of
from app.fetching.fetched import Fetched
from app.files.documents import DocumentReader
from app.files.downloads import Downloads, name_of
from app.files.errors import no_such_file
from app.heavy import off_loop
from app.ids import may_exist
from app.protocol.errors import InvalidRequest
from app.protocol.requests.items.images import check_data_url, media_type_of, unfolded
from app.protocol.types import Json
from app.store.database import Database
from app.store.files import content, files
from app.store.files.content import FileGone
from app.store.files.rows import FileRow

MAX_FILES = 100
"""Parts of one request that are files."""
_PURPOSES = {"input_file": ("user_data",), "input_image": ("user_data", "vision")}


_Place = tuple[int, str, int]
"""The item's index, its field, the part's index in it."""


@dataclass(frozen=True, slots=True)
class _Attachment:
    """A part that is a file."""

    place: _Place
    part: Json
    param: str

    @property
    def where(self) -> str:
        index, field, part = self.place
        return f"{self.param}[{index}].{field}[{part}]"

    @property
    def is_image(self) -> bool:
        return bool(self.part["type"] == "input_image")

    @property
    def source(self) -> str:
        """The field that says where the file is."""
        fields = ("image_url", "file_id") if self.is_image else ("file_data", "file_id", "file_url")
        return next(field for field in fields if field in self.part)

    @property
    def source_where(self) -> str:
        return f"{self.where}.{self.source}"


class Attachments:
    """Puts what files say into the items that name them."""

    def __init__(
        self, db: Database, documents: DocumentReader, downloads: Downloads | None, most_bytes: int, *, shares: bool
    ) -> None:
        """`most_bytes`: of what the files of one request become, and of those of all requests at once. Without
        `downloads` these are the requests of batches."""
        self._db = db
        self._documents = documents
        self._downloads = downloads
        self._most_bytes = most_bytes
        self.bound = Bound("attachments", most_bytes, unit="bytes of ", shares=shares)

    async def attach(self, project: str, items: Sequence[Json], held: ExitStack, param: str) -> tuple[list[Json], int]:
        """Returns the items with the text or the picture of each file, and the bytes that these have.

        What files bring in waits for room before it is read, and counts until the end of `held`. Raises NotFound for a
        file that the project does not have, InvalidRequest for one that cannot be used, StoreUnavailable, and
        BoundReached if too many requests download.
        """
        found = list(self._attachments(items, param))
        if not found:
            return list(items), 0
        if len(found) > MAX_FILES:
            raise _refused(found[MAX_FILES].where, "too_many_files", f"a request may have {MAX_FILES} files")
        rows = {each.place: await self._row(project, each) for each in found if each.source == "file_id"}
        async with self._downloaded(project, found) as fetched:
            sources: dict[_Place, FileRow | Fetched] = {**rows, **fetched}
            expected = min(self._most_bytes, sum(_expected(each, sources.get(each.place)) for each in found))
            holding = held.enter_context(await self.bound.wait(project, expected))
        made: dict[_Place, Json] = {}
        brought = 0
        for each in found:
            part, size = await self._read(project, each, sources.get(each.place))
            brought += size
            if brought > self._most_bytes:
                raise _refused(
                    each.where, "files_too_large", f"the files of a request may bring in {self._most_bytes} bytes"
                )
            made[each.place] = part
        holding.resize(brought)
        return _replaced(items, made), brought

    def _attachments(self, items: Sequence[Json], param: str) -> Iterator[_Attachment]:
        """Yields the parts whose files are to be read."""
        for index, item in enumerate(items):
            for field in ("content", "output"):
                parts = item.get(field)
                for place, part in enumerate(parts if isinstance(parts, list) else ()):
                    if self._is_unread(part):
                        yield _Attachment((index, field, place), part, param)

    def _is_unread(self, part: Json) -> bool:
        """A picture at a URL that is not downloaded here is the model's to fetch, or to refuse."""
        kind = part.get("type")
        if kind != "input_image":
            return kind == "input_file" and "text" not in part
        url = part.get("image_url")
        if url is None:
            return True
        return self._downloads is not None and not url.startswith("data:") and self._downloads.covers(url)

    @asynccontextmanager
    async def _downloaded(self, project: str, found: Sequence[_Attachment]) -> AsyncGenerator[dict[_Place, Fetched]]:
        """Yields what is at the URLs. It counts as downloaded until the end of the context."""
        wanted = [each for each in found if each.source.endswith("_url")]
        if not wanted:
            yield {}
            return
        if self._downloads is None:
            raise _no_urls(wanted[0].source_where, "in batches")
        if not self._downloads.any_allowed:
            raise _no_urls(wanted[0].source_where, "here: the operator allows no hosts")
        urls: dict[str, str] = {}
        for each in wanted:
            urls.setdefault(each.part[each.source], each.source_where)
        async with self._downloads.read(project, urls) as fetched:
            yield {each.place: fetched[each.part[each.source]] for each in wanted}

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

    async def _read(self, project: str, attachment: _Attachment, source: FileRow | Fetched | None) -> tuple[Json, int]:
        """Returns the part as it is stored, and the bytes that the file brought into it."""
        if source is None:
            return await self._read_data(project, attachment)
        part, where = attachment.part, attachment.source_where
        if isinstance(source, FileRow):
            name, size, codec = source.filename, source.bytes, None
            read = partial(content.read, self._db, project, source.id, 0, source.bytes)
        else:
            name, size, codec = name_of(source), len(source.body), codec_of(source.content_type)
            read = partial(_once, source.body)
        try:
            if attachment.is_image:
                if size > self._most_bytes * 3 // 4:
                    raise _refused(where, "image_too_large", f"an image may have {self._most_bytes * 3 // 4} bytes")
                body = b"".join([piece async for piece in read()])
                url = await off_loop(partial(_image_url, body, where), len(body))
                return {**part, "image_url": url}, len(url)
            name = part.get("filename") or name
            text = await self._documents.text_of(project, name, size, read, where, codec)
        except FileGone:
            raise no_such_file(part["file_id"], where) from None
        return {**part, "filename": name, "text": text}, len(text.encode())

    async def _read_data(self, project: str, attachment: _Attachment) -> tuple[Json, int]:
        part, where = attachment.part, f"{attachment.where}.file_data"
        data = await off_loop(partial(_data_in, part["file_data"], where), len(part["file_data"]))
        text = await self._documents.text_of(project, part["filename"], len(data), partial(_once, data), where)
        kept = {name: value for name, value in part.items() if name != "file_data"}
        return {**kept, "text": text}, len(text.encode())


def _expected(attachment: _Attachment, source: FileRow | Fetched | None) -> int:
    """The bytes that a file will bring in, or more."""
    if source is None:
        return len(attachment.part["file_data"])
    size = source.bytes if isinstance(source, FileRow) else len(source.body)
    return size * 4 // 3 + 100 if attachment.is_image else size


def _replaced(items: Sequence[Json], made: Mapping[_Place, Json]) -> list[Json]:
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
        return base64.b64decode(unfolded(rest if is_url else sent), validate=True)
    except (binascii.Error, ValueError):
        raise _refused(where, "invalid_base64", "expected valid base64, as a data URL or alone") from None


async def _once(piece: bytes) -> AsyncGenerator[bytes, None]:
    yield piece


def _no_urls(where: str, why: str) -> InvalidRequest:
    message = f"'{where}' is not supported {why}. Upload the file, and send its 'file_id'."
    return InvalidRequest(message, where, "unsupported_parameter")


def _refused(where: str, code: str, what: str) -> InvalidRequest:
    return InvalidRequest(f"Invalid '{where}': {what}.", where, code)
