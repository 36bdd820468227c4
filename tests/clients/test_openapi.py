"""The OpenAPI document, and schemathesis as its client: no request gets a 5xx or an undocumented answer.

Functions import schemathesis and make the document, which takes seconds: every process of `make test` collects this
file. One test walks all operations, and names those that fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import count
from typing import Any

import httpx
import orjson
import pytest
from hypothesis import Phase, settings

from app.protocol.requests.bodies.organization import MAX_NAME_CHARS
from tests.support.longhaul import Longhaul

# `make test-long` sends thousands of requests, some to every operation; `pytest --hypothesis-profile everything` more.
EVERYTHING = settings.get_current_profile_name() == "everything"
ITEM_BODIES = ("Compact", "CountTokens", "CreateConversation", "CreateItems")
"""Bodies whose items and tools are those of POST /v1/responses, read by the same models."""
ALTERNATIVES = 2 if EVERYTHING else 1
"""How many alternatives of a field these bodies are tried with."""
LARGEST = "POST /v1/responses"
SHARE = 1 if EVERYTHING else 16
"""One in so many of the 4,500 requests that schemathesis derives from the fields of the largest body is sent."""
NOWHERE = {"DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none", "REDIS_URL": "redis://127.0.0.1:1/0"}
ERRORS = tuple({"$ref": f"#/components/schemas/{name}"} for name in ("ErrorBody", "MessageErrorBody"))
REFUSED = ["400", "401", "403", "404", "405", "406", "409", "413", "414", "415", "422", "428", "429", "5xx"]
"""The default of schemathesis and 413, 414: a query beyond all bounds is refused as too long a URL."""


@cache
def document() -> dict[str, Any]:
    from app.main import create_app
    from config.settings import load_settings
    from tests.support.api import CATALOG

    return create_app(load_settings(**NOWHERE), CATALOG).openapi()


def operations() -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document()["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


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
    schemas = dict(document()["components"]["schemas"])
    schemas |= {name: short(schemas[name]) for name in ITEM_BODIES}
    return {**document(), "components": {**document()["components"], "schemas": schemas}}


def loaded(document: dict[str, Any], **config: Any) -> Any:
    import schemathesis

    refusing = {"checks": {"negative_data_rejection": {"expected-statuses": REFUSED}}}
    # This stream goes on after its last event: each request of it would last as long as a request may.
    endless = {"operations": [{"include-name": "GET /v1/events", "max-stream-events": 1}]}
    return schemathesis.openapi.from_dict(
        document, config=schemathesis.Config.from_dict({**refusing, **endless, **config})
    )


def failing(schema: Any, url: str, examples: int, change: Callable[[Any], bool]) -> dict[str, Exception]:
    """Sends what schemathesis derives and draws for each operation; `change` says whether a case is sent.

    The examples are the same in every run. Failing ones are not shrunk: that takes minutes.

    It leaves out that all a schema allows is accepted (fields have to agree with each other, too), and that `Allow`
    names documented methods only (GET /v1/responses/compact is a GET of a response called "compact").
    """
    import requests
    from schemathesis import checks
    from schemathesis.pytest.lazy import get_all_tests
    from schemathesis.specs.openapi import checks as openapi

    wanted: Any = [
        checks.not_a_server_error,
        openapi.status_code_conformance,
        openapi.content_type_conformance,
        openapi.response_headers_conformance,
        openapi.response_schema_conformance,
        openapi.negative_data_rejection,
        openapi.unsupported_method,
    ]
    drawn = settings(max_examples=examples, derandomize=True, phases=[Phase.explicit, Phase.generate])
    failed: dict[str, Exception] = {}
    with requests.Session() as session:  # it keeps its connection: thousands of new ones take longer

        def send(case: Any) -> None:
            if change(case):
                case.call_and_validate(base_url=url, session=session, checks=wanted, timeout=30)

        for made in get_all_tests(schema=schema, test_func=send, settings=drawn, given_kwargs={}):
            operation, test = made.ok()
            try:
                test()
            except Exception as error:
                failed[operation.label] = error
    return failed


@pytest.fixture(scope="module")
def http(scripted: Longhaul) -> Iterator[httpx.Client]:
    with scripted.http() as client:
        yield client


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
    file = http.post("/v1/files", data={"purpose": "user_data"}, files={"file": ("a.txt", b"Hello!")}).json()
    account = created("/v1/organization/projects/default/service_accounts", name="known")
    line = {"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": {"model": "scripted", "input": "Hi"}}
    lines = {"file": ("a.jsonl", orjson.dumps(line))}
    batch = {"endpoint": line["url"], "completion_window": "24h"}
    requests_file = http.post("/v1/files", data={"purpose": "batch"}, files=lines).json()["id"]
    hook = {"name": "known", "url": "https://127.0.0.1:1/", "event_types": ["batch.failed"]}
    nobody_s = {"kind": "cancel", "filter": {"model": "nobody"}, "reason": "known"}
    return {
        "response_id": created("/v1/responses", model="scripted", input="Hello!")["id"],
        "conversation_id": conversation,
        "item_id": listed["data"][0]["id"],
        "file_id": file["id"],
        "batch_id": created("/v1/batches", input_file_id=requests_file, **batch)["id"],
        "action_id": created("/v1/operator/actions", **nobody_s)["id"],
        "webhook_endpoint_id": created("/v1/webhook_endpoints", **hook)["id"],
        "event_id": "evt_0193",
        "model": "scripted",
        "project_id": "default",
        "service_account_id": account["id"],
        "key_id": account["api_key"]["id"],
        "rate_limit_id": "rl-scripted",
        "name": "nobody",  # A worker that is drained would leave the other requests without an answer.
    }


@pytest.fixture
def resumed(http: httpx.Client) -> Iterator[None]:
    """Ends what requests have paused: they may name what answers named, and other files use the installation."""
    yield
    for pause in http.get("/v1/operator/pauses").json()["data"]:
        named = {name: pause[name] for name in ("model", "project") if pause[name] is not None}
        http.delete("/v1/operator/pauses", params=named).raise_for_status()


@pytest.mark.long
@pytest.mark.usefixtures("known", "resumed")
def test_any_request_gets_a_documented_answer(scripted: Longhaul) -> None:
    from schemathesis.generation.meta import TestPhase

    derived = count()

    def is_sent(case: Any) -> bool:
        """Whether a request is sent: of those derived for the largest operation, a share."""
        of_largest = case.operation.label == LARGEST and case.meta is not None
        return not of_largest or case.meta.phase.name is not TestPhase.COVERAGE or next(derived) % SHARE == 0

    assert failing(loaded(short_document()), scripted.url, 4, is_sent) == {}


@pytest.mark.long
@pytest.mark.usefixtures("resumed")
def test_any_request_about_an_existing_resource_gets_a_documented_answer(
    scripted: Longhaul, known: dict[str, str]
) -> None:
    def about_existing(case: Any) -> bool:
        for name in case.path_parameters:
            case.path_parameters[name] = known[name]
        model = case.body.get("model") if isinstance(case.body, dict) else None
        if isinstance(model, str) and 0 < len(model) <= MAX_NAME_CHARS:  # Others are to be refused.
            case.body["model"] = known["model"]
            for endless in ("ignore_eos", "min_tokens"):  # an answer that fills the context takes minutes
                case.body.pop(endless, None)
        return True

    schema = loaded(document(), phases={"coverage": {"enabled": False}})
    schema = schema.exclude(method="DELETE").exclude(path="/v1/responses/{response_id}/cancel")
    assert (
        failing(schema.include(path_regex=r"\{|responses$|input_tokens$|compact$"), scripted.url, 4, about_existing)
        == {}
    )


def test_every_answer_is_documented_in_its_shape() -> None:
    for name, operation in operations():
        errors = {status: answer for status, answer in operation["responses"].items() if status[0] in "45"}
        assert "422" not in errors, f"{name}: none of ours answers so"
        for answer in errors.values():
            assert answer["description"], name
            (media,) = answer["content"].values()
            assert media["schema"] in (*ERRORS, {"$ref": "#/components/schemas/Ready"}), name
        for success in (answer for status, answer in operation["responses"].items() if status[0] == "2"):
            shown = [media["schema"] for media in success.get("content", {}).values()]
            assert all(shown) and (shown or success["description"]), name


def test_bodies_show_examples() -> None:
    for name, operation in operations():
        for kind, media in operation.get("requestBody", {"content": {}})["content"].items():
            if kind != "multipart/form-data":
                shown = document()["components"]["schemas"][media["schema"]["$ref"].rsplit("/", 1)[1]]
                assert media.get("examples") or shown.get("examples"), name


def test_the_document_and_its_page_are_served(http: httpx.Client) -> None:
    assert http.get("/openapi.json").json()["paths"].keys() == document()["paths"].keys()
    assert "swagger" in http.get("/docs").text.lower()
