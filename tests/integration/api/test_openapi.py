"""The OpenAPI document, the page that shows it, and every parameter that it has."""

from __future__ import annotations

import re
from typing import Any

import orjson
import pytest

from app.main import create_app
from app.protocol.errors import ErrorType
from config.settings import load_settings
from tests.support.api import CATALOG, Api
from tests.support.requests import parse_request

Json = dict[str, Any]

PROJECT = "/v1/organization/projects/default"
ODD_VALUES = ("", "-1", "%00", "%FF", "%ED%A0%80", "a" * 5000, "%F0%9F%98%80%27%3B--%0A", "9" * 400)


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Json:
    """Made once: it takes a second of CPU."""
    urls = {"DATABASE_URL": "postgresql://nowhere/x", "REDIS_URL": "redis://nowhere"}
    return create_app(load_settings(**urls, home=tmp_path_factory.mktemp("home")), CATALOG).openapi()


async def test_the_docs_page_needs_no_other_server(api: Api) -> None:
    page = (await api.client.get("/docs")).text
    own = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert len(own) >= 2 and "swagger" in page
    for path in own:
        assert path.startswith("/")
        assert (await api.client.get(path)).status_code == 200
    assert (await api.client.get("/docs/static/none.js")).json()["error"]["code"] == "unknown_url"


def test_the_document_is_sound(document: Json) -> None:
    components = document["components"]["schemas"]
    for reference in _references(document):
        assert reference.removeprefix("#/components/schemas/") in components
    # FastAPI tells schemas of requests and answers apart by `-Input` and `-Output`, or by the names of their modules.
    assert not [name for name in components if "-" in name or "__" in name]
    content = document["paths"]["/v1/responses"]["post"]["requestBody"]["content"]["application/json"]
    assert set(content["examples"]) == {"background", "stream", "messages"}
    for example in content["examples"].values():
        parse_request(orjson.dumps(example["value"]))
    request = components[content["schema"]["$ref"].rsplit("/", 1)[-1]]
    assert (request["required"], request["additionalProperties"]) == (["model"], False)
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert "422" not in operation["responses"]
            if path.startswith("/v1/"):
                reference = operation["responses"]["400"]["content"]["application/json"]["schema"]["$ref"]
                assert reference.endswith("ErrorBody")
    assert components["Error"]["properties"]["type"] == {"$ref": "#/components/schemas/ErrorType"}
    assert components["ErrorType"]["enum"] == [kind.value for kind in ErrorType]
    response = components["Response"]
    assert len(response["properties"]) >= 31
    shown_where_asked_for = {"input_messages", "output_messages", "omitted_tools"}
    assert set(response["required"]) == set(response["properties"]) - shown_where_asked_for


def _references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [found for child in value.values() for found in _references(child)]
    return [found for child in value for found in _references(child)] if isinstance(value, list) else []


async def test_no_value_of_a_parameter_is_a_server_error(api: Api, document: Json) -> None:
    """Every parameter of a path or a query, with values that no caller should send."""
    items = [{"role": "user", "content": "a", "id": "msg_mine"}]
    conversation = (await api.client.post("/v1/conversations", json={"items": items})).json()["id"]
    account = (await api.client.post(f"{PROJECT}/service_accounts", json={"name": "a"})).json()
    real = {
        "conversation_id": conversation,
        "item_id": "msg_mine",
        "response_id": await api.background(),
        "project_id": "default",
        "service_account_id": account["id"],
        "key_id": account["api_key"]["id"],
        "rate_limit_id": "rl-*",
        "model": "x",
        "name": "worker-1",
        "action_id": "action_1",
        "batch_id": "batch_1",
        "file_id": "file_1",
        "webhook_endpoint_id": "we_1",
        "event_id": "evt_1",
    }
    tried = 0
    for template, operations in document["paths"].items():
        names = re.findall(r"{(\w+)}", template)
        plain = template.format(**real)
        for method in sorted(operations.keys() - {"delete"}):
            urls = [template.format(**{**real, name: odd}) for name in names for odd in ODD_VALUES]
            query = [each["name"] for each in operations[method].get("parameters", ()) if each["in"] == "query"]
            urls += [f"{plain}?{name}={odd}" for name in query for odd in ODD_VALUES]
            for url in [*urls, f"{plain}?other=%00"]:
                answer = await api.client.request(method, url, **({"json": {}} if method == "post" else {}))
                is_bad = answer.status_code >= 500 and not url.startswith("/health/ready")
                assert not is_bad, (method, url, answer.text)
                tried += 1
    assert tried > 300
