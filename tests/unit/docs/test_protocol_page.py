"""docs/protocol.md says what the code does."""

from __future__ import annotations

import re
from typing import Any, get_args

from openai.types.responses import ResponseError
from openai.types.responses.response import IncompleteDetails

from app.api.docs import schemas
from app.main import create_app
from app.protocol.errors import FAILURES, ApiError
from app.protocol.requests.bodies.create_response import CreateResponse
from app.protocol.requests.bodies.vllm_params import ENGINE_PARAMS
from app.protocol.response import error_object
from config.models import ModelCatalog
from config.process import CHECKOUT
from config.settings import load_settings
from tests.support.pages import table
from tests.support.sdk import openai_fields
from workers.engine.base import EngineError
from workers.generation.turns.compaction import SummaryCut
from workers.generation.turns.inputs import ContextLost

PAGE = (CHECKOUT / "docs" / "protocol.md").read_text(encoding="utf-8")
ADMIN_PAGE = (CHECKOUT / "docs" / "admin.md").read_text(encoding="utf-8")
OPERATOR_PAGE = (CHECKOUT / "docs" / "operator.md").read_text(encoding="utf-8")


def all_of(kind: type[Any]) -> list[type[Any]]:
    """The class and all below it, of the modules that are imported."""
    return [kind, *(below for each in kind.__subclasses__() for below in all_of(each))]


def test_every_field_has_its_row() -> None:
    fields = [row[0].strip("`") for row in table("Fields of a request")]
    assert sorted(fields) == sorted(set(CreateResponse.model_fields) - set(ENGINE_PARAMS))
    assert openai_fields() <= set(fields)


def test_every_row_says_what_becomes_of_the_field() -> None:
    for field, said, *_ in [*table("Fields of a request"), *table("Fields of a chat request")]:
        assert re.match(r"honoured|refused|ours|opaque", said), field


def test_the_list_of_extras_is_the_codes() -> None:
    documented = {row[0].strip("`"): row[1] for row in table("vLLM's parameters")}
    meanings = {name: param.meaning.replace("`", "") for name, param in ENGINE_PARAMS.items()}
    assert {name: meaning.replace("`", "") for name, meaning in documented.items()} == meanings


def test_every_route_has_its_row() -> None:
    settings = load_settings(DATABASE_URL="postgresql://x/x", REDIS_URL="redis://x")
    document = create_app(settings, ModelCatalog(())).openapi()
    routes = {
        f"{method.upper()} {path}"
        for path, operations in document["paths"].items()
        for method in operations
        if path.startswith("/v1/")
    }
    rows = [*table("Endpoints"), *table("Endpoints", ADMIN_PAGE), *table("Endpoints", OPERATOR_PAGE)]
    assert {row[0].strip("`") for row in rows} == {route.replace(":path", "") for route in routes}


def test_the_exceptions_from_the_packages_types_are_those_that_there_are() -> None:
    """Here the values are compared; tests/integration/api/test_sdk_shapes.py validates whole answers."""
    listed = {row[0].split()[0].strip("`"): set(re.findall(r"`(\w+)`", row[1])) for row in table("Types of answers")}
    reason_of = get_args(schemas.Response.model_fields["incomplete_details"].annotation)[0].model_fields["reason"]
    reasons = get_args(IncompleteDetails.model_fields["reason"].annotation)
    known = {name for reason in reasons for name in get_args(reason)}
    failures = all_of(EngineError)
    assert {SummaryCut, ContextLost} < {*failures}
    codes = {error_object(code, "")["code"] for code in (*(kind.code for kind in failures), *FAILURES)}
    assert listed == {
        "error.code": codes - set(get_args(ResponseError.model_fields["code"].annotation)),
        "incomplete_details.reason": set(get_args(reason_of.annotation)) - known,
    }


def test_every_status_of_an_error_has_its_row() -> None:
    assert {int(row[0]) for row in table("Errors")} == {kind.status for kind in all_of(ApiError)}
