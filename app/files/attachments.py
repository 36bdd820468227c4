"""Files in the parts of items: their text, or their picture, takes its place in the item before the request is stored.

So a prompt is the same at each attempt, and in each response that continues it, whatever becomes of the file or of what
is at a URL; and what a file costs is known when the request is accepted (docs/internals/decisions/attachments.md).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial

from app.bounds import Bound, Holding, TotalReached
from app.files.attachment import (
    Attachment,
    Key,
    beginning,
    data_in,
    document_of,
    expected_bytes,
    image_url,
    replaced,
)
from app.files.documents import Document, DocumentReader, is_pdf
from app.files.downloads import Downloads
from app.files.errors import no_such_file, refused
from app.heavy import off_loop
from app.protocol.errors import InvalidRequest, Unavailable
from app.protocol.types import Json
from app.store.database import Database
from app.store.files import content, files
from app.store.files.content import FileGone
from app.store.files.rows import FileRow

MAX_REQUEST_FILES = 100
"""Parts of one request that are files."""
REQUESTS = 4
"""Whose files may have as many bytes as files may have, at once: one with slow PDFs leaves room for others' files."""
FREE_BYTES = 64 * 1024
"""Bytes of each request's files that are not counted, so that small files never wait."""
ROOM_SECONDS = 30.0
"""How long a request waits for room."""
SECONDS = 60.0
"""How long all files of one request may take together, and how long its PDFs may wait for others': the request holds
bytes, and its turn to be accepted, meanwhile."""


@dataclass(slots=True)
class _Patience:
    """The time that a request has left: its own until `deadline`, and `left` seconds of waiting for others."""

    deadline: asyncio.Timeout
    left: float

    async def wait(self, bound: Bound, project: str) -> Holding:
        """Returns a place of the bound. The deadline stands still meanwhile. Raises TotalReached."""
        now = asyncio.get_running_loop().time
        began, end = now(), self.deadline.when()
        assert end is not None
        self.deadline.reschedule(None)
        try:
            async with asyncio.timeout(self.left):
                place = await bound.wait(project)
        except TimeoutError:
            raise TotalReached(bound) from None
        waited = now() - began
        self.left -= waited
        self.deadline.reschedule(end + waited)
        return place


class Attachments:
    """Puts what files say into the items that name them."""

    def __init__(
        self, db: Database, documents: DocumentReader, downloads: Downloads | None, most_bytes: int, *, shares: bool
    ) -> None:
        """`most_bytes`: of what the files of one request become. Without `downloads` these are the requests of
        batches."""
        self._db = db
        self._documents = documents
        self._downloads = downloads
        self._most_bytes = most_bytes
        self.bound = Bound(
            "attachments", REQUESTS * most_bytes, FREE_BYTES, unit="bytes of ", shares=shares, seconds=ROOM_SECONDS
        )

    async def attach(
        self, project: str, items: Sequence[Json], held: ExitStack, param: str, *, spares: bool = False
    ) -> tuple[list[Json], int]:
        """Returns the items with the text or the picture of each file, and the bytes that these have.

        With `spares`, the text of a document that cannot be read says why, and the request is not refused.
        What files bring in waits for room, and counts until the end of `held`. Raises NotFound for a file that the
        project does not have, InvalidRequest for one that cannot be used, StoreUnavailable, BoundReached, and
        Unavailable after SECONDS.
        """
        found = list(self._attachments(items, param))
        if not found:
            return list(items), 0
        if len(found) > MAX_REQUEST_FILES:
            raise refused(
                found[MAX_REQUEST_FILES].where, "too_many_files", f"a request may have {MAX_REQUEST_FILES} files"
            )
        holding = held.enter_context(self.bound.take(project, 0))
        try:
            async with asyncio.timeout(SECONDS) as deadline:
                patience, text = _Patience(deadline, SECONDS), _spared if spares else lambda reading: reading
                return await self._attached(project, items, found, holding, patience, text)
        except TimeoutError:
            message = f"The files of the request were not read within {SECONDS:g} seconds; send fewer of them at once."
            raise Unavailable(message, code="files_too_slow") from None

    async def _attached(
        self,
        project: str,
        items: Sequence[Json],
        found: Sequence[Attachment],
        holding: Holding,
        patience: _Patience,
        text: Callable[[Awaitable[str]], Awaitable[str]],
    ) -> tuple[list[Json], int]:
        """PDFs come first, because they take seconds: meanwhile the request holds what is in memory, and no more."""
        files = await self._files(project, found)
        async with self._downloaded(project, found) as fetched:
            files |= fetched
            in_memory = sum(file.size for key, file in files.items() if key.source != "file_id")
            await holding.wait(in_memory)
        read: dict[Key, str] = {}
        sizes: dict[Key, int] = {}
        brought = 0
        for key, file in files.items():
            if not key.is_image and is_pdf(await file.head()):
                with await patience.wait(self._documents.bound, project):
                    read[key] = await text(self._documents.text_of_pdf(file))
                sizes[key] = len(read[key].encode())
                brought = self._brought(found, sizes)
                await holding.wait(in_memory + brought)
        rest = {key: file for key, file in files.items() if key not in read}
        expected = brought + sum(expected_bytes(rest[each.key], each) for each in found if each.key in rest)
        await holding.wait(in_memory + min(self._most_bytes, expected))
        for key, file in rest.items():
            read[key] = await (self._image(file) if key.is_image else text(self._documents.text_of(file)))
            sizes[key] = len(read[key].encode())
            brought = self._brought(found, sizes)
        holding.resize(brought)
        return replaced(items, {each.place: each.stored(files[each.key], read[each.key]) for each in found}), brought

    def _brought(self, found: Sequence[Attachment], sizes: Mapping[Key, int]) -> int:
        """Returns the bytes that the parts have by now. Raises InvalidRequest for the first that is too much."""
        total = 0
        for each in found:
            total += sizes.get(each.key, 0)
            if total > self._most_bytes:
                message = f"the files of a request may bring in {self._most_bytes} bytes"
                raise refused(each.where, "files_too_large", message)
        return total

    def _attachments(self, items: Sequence[Json], param: str) -> Iterator[Attachment]:
        """Yields the parts whose files are to be read."""
        for index, item in enumerate(items):
            for field in ("content", "output"):
                parts = item.get(field)
                for place, part in enumerate(parts if isinstance(parts, list) else ()):
                    if self._is_unread(part):
                        yield Attachment((index, field, place), part, param)

    def _is_unread(self, part: Json) -> bool:
        """A picture at a URL that is not downloaded here is the model's to fetch, or to refuse."""
        kind = part.get("type")
        if kind != "input_image":
            return kind == "input_file" and "text" not in part
        url = part.get("image_url")
        if url is None:
            return True
        return self._downloads is not None and not url.startswith("data:") and self._downloads.covers(url)

    async def _files(self, project: str, found: Sequence[Attachment]) -> dict[Key, Document]:
        """Returns the files that were uploaded, or came with the request."""
        rows: dict[str, FileRow] = {}
        files: dict[Key, Document] = {}
        for each in found:
            if each.source == "file_id":
                row = await self._row(project, each, rows)
                name, size, read = row.filename, row.bytes, partial(self._stored, project, row.id, each.source_where)
            elif each.source == "file_data":
                if each.key in files:
                    continue
                sent, where = each.part["file_data"], each.source_where
                body = await off_loop(partial(data_in, sent, where), len(sent))
                name, size, read = each.part["filename"], len(body), partial(beginning, body)
            else:
                continue
            files.setdefault(each.key, Document(name, size, read, each.source_where))
        return files

    @asynccontextmanager
    async def _downloaded(self, project: str, found: Sequence[Attachment]) -> AsyncGenerator[dict[Key, Document]]:
        """Yields what is at the URLs. It counts as downloaded until the end of the context."""
        wanted = {each.key: each for each in reversed(found) if each.source.endswith("_url")}
        if not wanted:
            yield {}
            return
        first = list(wanted.values())[-1]
        if self._downloads is None:
            raise _no_urls(first.source_where, "in batches")
        if not self._downloads.any_allowed:
            raise _no_urls(first.source_where, "here: the operator allows no hosts")
        urls = {key.value: each.source_where for key, each in reversed(wanted.items())}
        async with self._downloads.read(project, urls) as fetched:
            yield {key: document_of(fetched[key.value], each) for key, each in wanted.items()}

    async def _row(self, project: str, attachment: Attachment, known: dict[str, FileRow]) -> FileRow:
        file_id, where = attachment.part["file_id"], f"{attachment.where}.file_id"
        row = known.get(file_id) or await files.get(self._db, project, file_id)
        if row is None:
            raise no_such_file(file_id, where)
        if row.purpose not in attachment.purposes:
            named = " or ".join(f"'{purpose}'" for purpose in attachment.purposes)
            raise refused(where, "invalid_purpose", f"the file's purpose is '{row.purpose}'; upload it as {named}")
        known[file_id] = row
        return row

    async def _stored(self, project: str, file_id: str, where: str, stop: int) -> AsyncGenerator[bytes, None]:
        """Reads an uploaded file up to `stop`."""
        try:
            async with aclosing(content.read(self._db, project, file_id, 0, stop)) as pieces:
                async for piece in pieces:
                    yield piece
        except FileGone:
            raise no_such_file(file_id, where) from None

    async def _image(self, file: Document) -> str:
        if file.size > self._most_bytes * 3 // 4:
            most = self._most_bytes * 3 // 4
            raise refused(file.where, "image_too_large", f"an image may have {most} bytes")
        return await off_loop(partial(image_url, bytes(await file.body()), file.where), file.size)


async def _spared(reading: Awaitable[str]) -> str:
    try:
        return await reading
    except InvalidRequest as error:
        return f"[The file was left out: {error.error.message.partition(': ')[2]}]"


def _no_urls(where: str, why: str) -> InvalidRequest:
    message = f"'{where}' is not supported {why}. Upload the file, and send its 'file_id'."
    return InvalidRequest(message, where, "unsupported_parameter")
