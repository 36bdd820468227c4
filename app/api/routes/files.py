"""`/v1/files`: uploaded, listed, read, deleted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from app.api.dependencies import HoldOf, Project, RuntimeOf
from app.api.docs import schemas
from app.api.docs.routes import FILE_CONTENT, FILE_FORM, error_answers
from app.api.errors import encoded_reply, reply
from app.api.files.content import content_of
from app.api.files.forms import check_announced, incoming, received
from app.api.queries import FilesQuery
from app.api.routes.route import Asked, Route
from app.heavy import off_loop
from app.protocol.requests.bodies.files import MAX_FILE_BYTES, CreateFile
from app.protocol.requests.validation import validate
from app.responses.paging import encoded_list
from app.store.files.files import PAGE_FILES, page_of
from app.store.files.rows import FileRow

router = APIRouter(prefix="/v1/files", tags=["files"], route_class=Route)

_ANCHOR, _SECONDS = "expires_after[anchor]", "expires_after[seconds]"
OBJECT_BYTES = 300
"""Size that an entry of a list mostly stays below."""


@router.post(
    "",
    summary="Upload a file",
    response_model=schemas.File,
    responses=error_answers(413, 415),
    openapi_extra={"requestBody": FILE_FORM},
)
async def create_file(request: Request, runtime: RuntimeOf, project: Project) -> Response:
    """The form has `file` and `purpose`, and may have `expires_after[anchor]` and `expires_after[seconds]`."""
    announced = check_announced(request, MAX_FILE_BYTES)
    async with incoming(request, project, frozenset({"purpose", _ANCHOR, _SECONDS})) as form:
        if "purpose" in form.values:  # Else it is behind the file.
            _fields(form.values, form.filename)
        async with runtime.files.receiving(project, announced) as writer:
            await received(form, writer, MAX_FILE_BYTES)
            return reply(await runtime.files.create(writer, _fields(form.values, form.filename)))


def _encoded(rows: Sequence[FileRow], has_more: bool) -> bytes:
    return encoded_list([(row.id, orjson.dumps(row.as_object())) for row in rows], has_more=has_more)


def _fields(values: Mapping[str, str], filename: str | None) -> CreateFile:
    """Returns what the form says of the file. Raises InvalidRequest."""
    body: dict[str, Any] = {name: values[name] for name in ("purpose",) if name in values}
    if filename is not None:
        body["filename"] = filename
    expiry: dict[str, Any] = {}
    if _ANCHOR in values:
        expiry["anchor"] = values[_ANCHOR]
    if _SECONDS in values:
        sent = values[_SECONDS]
        expiry["seconds"] = int(sent) if sent.isascii() and sent.isdecimal() and len(sent) < 20 else sent
    return validate(CreateFile, {**body, **({"expires_after": expiry} if expiry else {})})


@router.get("", summary="List files", response_model=schemas.FileList)
async def list_files(query: Asked[FilesQuery], runtime: RuntimeOf, project: Project, hold: HoldOf) -> Response:
    await hold(min(query.limit, PAGE_FILES) * OBJECT_BYTES)
    rows, has_more = await page_of(runtime.db, project, query.page, query.purpose)
    return encoded_reply(await off_loop(partial(_encoded, rows, has_more), items=len(rows)))


@router.get("/{file_id}", summary="Read what is known of a file", response_model=schemas.File)
async def get_file(file_id: str, runtime: RuntimeOf, project: Project) -> Response:
    return reply((await runtime.files.get(project, file_id)).as_object())


@router.get(
    "/{file_id}/content",
    summary="Read a file",
    response_class=Response,
    responses={**FILE_CONTENT, **error_answers(416)},
)
async def get_content(request: Request, file_id: str, runtime: RuntimeOf, project: Project) -> Response:
    """With the header `Range`, one range of it."""
    file = await runtime.files.get(project, file_id)
    return content_of(request, file, partial(runtime.files.read, project, file.id))


@router.delete("/{file_id}", summary="Delete a file", response_model=schemas.FileDeleted)
async def delete_file(file_id: str, runtime: RuntimeOf, project: Project) -> Response:
    return reply(await runtime.files.delete(project, file_id))
