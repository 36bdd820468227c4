"""Routes whose signature says what a request has: `Asked[M]` is its query, `Sent[M]` its body. `/docs` shows both."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar, get_type_hints

import fastapi
from fastapi import Depends, Request
from fastapi.params import Depends as Dependency
from fastapi.routing import APIRoute
from starlette.responses import Response
from starlette.routing import request_response

from app.api.body import read_body_as
from app.api.dependencies import current_caller, runtime_of
from app.api.docs.routes import error_answers
from app.api.holdings import READ_BYTES, holdings_of
from app.api.queries import Query
from app.api.rate_limits import headers_of
from app.ids import may_exist
from app.protocol.limits import LimitKind
from app.protocol.requests.validation import Model
from app.protocol.types import Json
from config.logging.context import note_response

Handler = Callable[[Request], Coroutine[Any, Any, Response]]

_READS = frozenset({"GET", "HEAD"})

QueryModel = TypeVar("QueryModel", bound=Query)


@dataclass(frozen=True, slots=True)
class Body(Generic[Model]):
    """A request body of the form `model`. `Annotated[Request, Body(...)]` marks one that the route reads itself."""

    model: type[Model]
    may_be_empty: bool = False
    examples: Json | None = None

    async def read(self, request: Request) -> Model:
        """Returns the body. Raises InvalidRequest, TooLarge and UnsupportedMedia."""
        settings = request.state.runtime.settings
        return await read_body_as(self.model, request, settings, may_be_empty=self.may_be_empty)

    def field(self) -> Any:
        """Returns what a route that leaves its body to FastAPI has as `body_field`."""

        def takes(body: Any) -> None: ...

        takes.__annotations__["body"] = Annotated[self.model, fastapi.Body(openapi_examples=self.examples)]
        takes.__defaults__ = (None,) if self.may_be_empty else None
        return APIRoute("/", takes).body_field


if TYPE_CHECKING:
    Sent = Annotated[Model, "body"]
    Asked = Annotated[QueryModel, "query"]
else:

    class Sent:
        """A parameter with the body of the request."""

        def __class_getitem__(cls, model: type[Model]) -> Any:
            return Annotated[model, Depends(Body(model).read)]

    class Asked:
        """A parameter with the query of the request."""

        def __class_getitem__(cls, model: type[QueryModel]) -> Any:
            return Annotated[model, Depends(model.read)]


class Route(APIRoute):
    """A route of the API, whose requests are charged to limits of the caller's project.

    Every one may answer 400, 429 and 503; a path with an id, and a body, add what they may answer.
    """

    def __init__(
        self,
        path: str,
        endpoint: Callable[..., Any],
        *,
        dependencies: Sequence[Dependency] = (),
        responses: dict[int | str, Json],
        openapi_extra: Json | None = None,
        **options: Any,
    ) -> None:
        readers = [*_readers_of(endpoint, dependencies)]
        body = next((reader for reader in readers if isinstance(reader, Body)), None)
        query = next((reader for reader in readers if isinstance(reader, type) and issubclass(reader, Query)), None)
        self._query = query
        extra: Json = {} if query is None else {"parameters": query.parameters()}
        super().__init__(
            path,
            endpoint,
            dependencies=dependencies,
            responses={**error_answers(*_errors(path, has_body=body is not None)), **responses},
            openapi_extra={**extra, **(openapi_extra or {})},
            **options,
        )
        takes = inspect.signature(endpoint).parameters.keys() - self.param_convertors.keys()
        answers = get_type_hints(endpoint).get("return") is Response
        if takes in ({"request"}, {"request", "query"}) and answers and not dependencies:
            self.app = request_response(self._charged(self._call))
        if body is not None:  # For the document: by now FastAPI has decided that it does not read the body.
            self.body_field = body.field()

    def get_route_handler(self) -> Handler:
        return self._charged(super().get_route_handler())

    async def _call(self, request: Request) -> Response:
        """The endpoint's answer. FastAPI takes 25 us of CPU to find the same parameters."""
        query = {} if self._query is None else {"query": await self._query.read(request)}
        answer: Response = await self.endpoint(request=request, **request.path_params, **query)
        return answer

    def _charged(self, handle: Handler) -> Handler:
        is_read = self.methods <= _READS
        kind = LimitKind.READS_PER_MINUTE if is_read else LimitKind.REQUESTS_PER_MINUTE

        async def handle_charged(request: Request) -> Response:
            caller, runtime = await current_caller(request), await runtime_of(request)
            for name, value in request.path_params.items():
                # Postgres' text cannot hold U+0000, so nothing is called so.
                request.path_params[name] = value.replace("\0", "\ufffd")
            if may_exist(named := request.path_params.get("response_id", "")):
                note_response(named)
            if is_read:  # The others are accepted once their body is complete.
                await holdings_of(request.scope).accept(READ_BYTES)
            # Before the body is read: what is refused costs as much as what is not.
            allowance = None if caller.project is None else await runtime.charges.take(caller.project, kind)
            if self._query is None:
                await Query.read(request)  # Cheaper than a dependency.
            response = await handle(request)
            for name, value in headers_of(allowance).items():
                response.headers.setdefault(name, value)
            return response

        return handle_charged


def _errors(path: str, *, has_body: bool) -> Iterable[int]:
    return 400, *([404] if "{" in path else []), *([413, 415] if has_body else []), 429, 503


def _readers_of(endpoint: Callable[..., Any], more: Iterable[Dependency]) -> Iterable[object]:
    """Returns every `Body` and `Query` in the signature and in `more`."""
    hints = get_type_hints(endpoint, include_extras=True).values()
    marks = [mark for hint in hints for mark in getattr(hint, "__metadata__", ())]
    for mark in (*marks, *more):
        yield getattr(mark.dependency, "__self__", None) if isinstance(mark, Dependency) else mark
