"""`/v1/uploads`: files that come in parts."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.api.dependencies import Project, RuntimeOf
from app.api.docs import schemas
from app.api.docs.routes import PART_FORM, error_answers
from app.api.errors import reply
from app.api.files.forms import check_announced, incoming, received
from app.api.routes.route import Route, Sent
from app.protocol.requests.bodies.files import MAX_PART_BYTES, CompleteUpload, CreateUpload

router = APIRouter(prefix="/v1/uploads", tags=["files"], route_class=Route)


@router.post("", summary="Begin an upload", response_model=schemas.Upload)
async def create_upload(sent: Sent[CreateUpload], runtime: RuntimeOf, project: Project) -> Response:
    return reply(await runtime.uploads.create(project, sent))


@router.post(
    "/{upload_id}/parts",
    summary="Add a part",
    response_model=schemas.UploadPart,
    responses=error_answers(413, 415),
    openapi_extra={"requestBody": PART_FORM},
)
async def add_part(request: Request, upload_id: str, runtime: RuntimeOf, project: Project) -> Response:
    """The form has `data`, up to 64 MiB. Parts may be sent in any order, and at once."""
    announced = check_announced(request, MAX_PART_BYTES)
    async with (
        incoming(request, project, "data") as form,
        runtime.uploads.receiving(project, upload_id, announced) as writer,
    ):
        await received(form, writer, MAX_PART_BYTES)
        return reply(await runtime.uploads.add(writer, upload_id))


@router.post("/{upload_id}/complete", summary="Make a file of an upload's parts", response_model=schemas.Upload)
async def complete_upload(upload_id: str, sent: Sent[CompleteUpload], runtime: RuntimeOf, project: Project) -> Response:
    """`part_ids` has the parts in the order of the file. With `md5`, the bytes are compared."""
    return reply(await runtime.uploads.complete(project, upload_id, sent))


@router.post("/{upload_id}/cancel", summary="Cancel an upload", response_model=schemas.Upload)
async def cancel_upload(upload_id: str, runtime: RuntimeOf, project: Project) -> Response:
    return reply(await runtime.uploads.cancel(project, upload_id))
