"""The OpenAPI document, and schemathesis as its client: no request gets a 5xx or an undocumented answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import httpx
import orjson
import pytest
import requests
import schemathesis
from hypothesis import Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation.meta import TestPhase
from schemathesis.pytest.lazy import get_all_tests
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from app.main import create_app
from config.settings import load_settings
from tests.support.api import CATALOG
from tests.support.longhaul import Longhaul

# `make test-long` sends 3,000 requests, some to every operation; `pytest --hypothesis-profile everything` sends 8,000.
EVERYTHING = settings.get_current_profile_name() == "everything"

# What it leaves out: that all a schema allows is accepted (fields have to agree with each other, too), and that
# `Allow` names documented methods only (GET /v1/responses/compact is a GET of a response called "compact").
CHECKS: Any = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
    unsupported_method,
]
EXAMPLES = settings(max_examples=8, derandomize=True, phases=[Phase.explicit, Phase.generate])
"""A fixed number of examples, the same in every run. Failing ones are not shrunk: that takes minutes."""

ITEM_BODIES = ("Compact", "CountTokens", "CreateConversation", "CreateItems")
"""Bodies whose items and tools are those of POST /v1/responses, read by the same models."""
ALTERNATIVES = 2 if EVERYTHING else 1
"""How many alternatives of a field these bodies are tried with."""
LARGEST = "POST /v1/responses"
SHARE = 1 if EVERYTHING else 8
"""One in so many of the 4,500 requests that schemathesis derives from the fields of the largest body is sent."""

NOWHERE = {"DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none", "REDIS_URL": "redis://127.0.0.1:1/0"}
DOCUMENT = create_app(load_settings(**NOWHERE), CATALOG).openapi()
OPERATIONS = [
    pytest.param(operation, id=f"{method.upper()} {path}")
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
]
ERROR = {"$ref": "#/components/schemas/ErrorBody"}


def short(schema: Any) -> Any:
    """The schema with no more than ALTERNATIVES at each place."""
    if isinstance(schema, list):
        return [short(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {name: short(value) for name, value in schema.items() if name != "discriminator"}
    return {**kept, "oneOf": kept["oneOf"][:ALTERNATIVES]} if "oneOf" in kept else kept


def short_document() -> dict[str, Any]:
    """The document without most alternatives of items in other bodies than that of POST /v1/responses.

    Each such body has 3,000 requests for the fields of all kinds of items and tools, which the first body has, too.
    """
    schemas = dict(DOCUMENT["components"]["schemas"])
    schemas |= {name: short(schemas[name]) for name in ITEM_BODIES}
    return {**DOCUMENT, "components": {**DOCUMENT["components"], "schemas": schemas}}


REFUSED = ["400", "401", "403", "404", "405", "406", "409", "413", "414", "415", "422", "428", "429", "5xx"]
"""The default of schemathesis and 413, 414: a query beyond all bounds is refused as too long a URL."""
REFUSING = {"checks": {"negative_data_rejection": {"expected-statuses": REFUSED}}}
schema = schemathesis.openapi.from_dict(short_document(), config=schemathesis.Config.from_dict(REFUSING))
fuzzing = schemathesis.openapi.from_dict(
    DOCUMENT, config=schemathesis.Config.from_dict({**REFUSING, "phases": {"coverage": {"enabled": False}}})
)
about_existing = (
    fuzzing.exclude(method="DELETE")
    .exclude(path="/v1/responses/{response_id}/cancel")
    .include(path_regex=r"\{|responses$|input_tokens$|compact$")
)


def operations(of: Any) -> list[str]:
    """Returns the names of the schema's operations."""
    return [found.ok().label for found in of.get_all_operations()]


_derived = count()


def is_left_out(case: schemathesis.Case) -> bool:
    """Whether the case is not in the share of the largest operation that this run sends."""
    derived = case.meta is not None and case.meta.phase.name is TestPhase.COVERAGE
    return derived and case.operation.label == LARGEST and next(_derived) % SHARE != 0


def make_requests(schema: Any, operation: str, send: Callable[[schemathesis.Case], None]) -> None:
    """Sends what schemathesis derives and draws for the operation.

    `schema.parametrize` derives all requests of all operations when pytest collects: 16 s of CPU in each process.
    """
    tests = get_all_tests(schema=schema.include(name=operation), test_func=send, settings=EXAMPLES, given_kwargs={})
    (made,) = tests
    _operation, test = made.ok()
    test()


@pytest.fixture(scope="module")
def http(scripted: Longhaul) -> Iterator[httpx.Client]:
    with scripted.http() as client:
        yield client


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    """Keeps its connection: thousands of new ones take longer than the requests."""
    with requests.Session() as opened:
        yield opened


@pytest.fixture(scope="module")
def known(http: httpx.Client) -> dict[str, str]:
    """Returns path parameters of existing resources."""

    def created(path: str, **body: Any) -> Any:
        answer = http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    item = {"type": "message", "role": "user", "content": "Hello!"}
    conversation = created("/v1/conversations", items=[item])["id"]
    listed = http.get(f"/v1/conversations/{conversation}/items").json()
    upload = {"filename": "a", "bytes": 1, "mime_type": "text/plain", "purpose": "user_data"}
    file = http.post("/v1/files", data={"purpose": "user_data"}, files={"file": ("a.txt", b"Hello!")}).json()
    account = created("/v1/organization/projects/default/service_accounts", name="known")
    line = {"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": {"model": "scripted", "input": "Hi"}}
    lines = {"file": ("a.jsonl", orjson.dumps(line))}
    batch = {"endpoint": line["url"], "completion_window": "24h"}
    requests_file = http.post("/v1/files", data={"purpose": "batch"}, files=lines).json()["id"]
    nobody_s = {"kind": "cancel", "filter": {"model": "nobody"}, "reason": "known"}
    return {
        "response_id": created("/v1/responses", model="scripted", input="Hello!")["id"],
        "conversation_id": conversation,
        "item_id": listed["data"][0]["id"],
        "file_id": file["id"],
        "batch_id": created("/v1/batches", input_file_id=requests_file, **batch)["id"],
        "action_id": created("/v1/operator/actions", **nobody_s)["id"],
        "upload_id": created("/v1/uploads", **upload)["id"],
        "model": "scripted",
        "project_id": "default",
        "service_account_id": account["id"],
        "key_id": account["api_key"]["id"],
        "rate_limit_id": "rl-scripted",
        "name": "nobody",  # A worker that is drained would leave the other requests without an answer.
    }


@pytest.mark.long
@pytest.mark.parametrize("operation", operations(schema))
def test_any_request_gets_a_documented_answer(operation: str, scripted: Longhaul, session: requests.Session) -> None:
    def send(case: schemathesis.Case) -> None:
        if not is_left_out(case):
            case.call_and_validate(base_url=scripted.url, session=session, checks=CHECKS, timeout=30)

    make_requests(schema, operation, send)


@pytest.mark.parametrize("operation", operations(about_existing))
def test_any_request_about_an_existing_resource_gets_a_documented_answer(
    operation: str, scripted: Longhaul, session: requests.Session, known: dict[str, str]
) -> None:
    def send(case: schemathesis.Case) -> None:
        for name in case.path_parameters:
            case.path_parameters[name] = known[name]
        if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
            case.body["model"] = known["model"]
            for endless in ("ignore_eos", "min_tokens"):  # an answer that fills the context takes minutes
                case.body.pop(endless, None)
        case.call_and_validate(base_url=scripted.url, session=session, checks=CHECKS, timeout=30)

    make_requests(fuzzing, operation, send)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_error_is_documented_in_its_shape(operation: dict[str, Any]) -> None:
    errors = {status: answer for status, answer in operation["responses"].items() if status[0] in "45"}
    assert "422" not in errors, "none of ours answers so"
    for answer in errors.values():
        assert answer["description"]
        (media,) = answer["content"].values()
        assert media["schema"] in (ERROR, {"$ref": "#/components/schemas/Ready"})


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_success_shows_its_model(operation: dict[str, Any]) -> None:
    for success in (answer for status, answer in operation["responses"].items() if status[0] == "2"):
        shown = [media["schema"] for media in success.get("content", {}).values()]
        assert all(shown) and (shown or success["description"])


def test_bodies_show_examples() -> None:
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            for kind, media in operation.get("requestBody", {"content": {}})["content"].items():
                if kind == "multipart/form-data":
                    continue
                shown = DOCUMENT["components"]["schemas"][media["schema"]["$ref"].rsplit("/", 1)[1]]
                assert media.get("examples") or shown.get("examples"), f"{method} {path}"


def test_the_document_and_its_page_are_served(http: httpx.Client) -> None:
    served = http.get("/openapi.json").json()
    assert served["paths"].keys() == DOCUMENT["paths"].keys()
    assert "swagger" in http.get("/docs").text.lower()
