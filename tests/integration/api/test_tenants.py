"""What belongs to one project is not there for another: every route, and every way to name a thing."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection

from app.access.administration import Administration
from app.access.caller import OPERATOR_SCOPES, Scope
from app.access.service_accounts import ServiceAccounts
from app.ids import new_id, random_suffix
from app.store.database import Database
from app.store.keys import SharedSealer
from app.store.sealing import SealedKind
from tests.integration.api.common import answer_to, change, socket_of
from tests.support.api import MODEL, Api
from tests.support.logs import row_of
from tests.support.player import Player
from tests.support.tenants import Tenant, as_caller, tenant

Json = dict[str, Any]

SECRET_TEXT = "what only the red team knows"
SETTINGS = {"auth": "keys"}


@pytest.fixture
async def red(admin: Administration) -> Tenant:
    return await tenant(admin, "red")


@pytest.fixture
async def blue(admin: Administration) -> Tenant:
    return await tenant(admin, "blue")


@pytest.fixture
async def as_red(api: Api, red: Tenant) -> AsyncIterator[Api]:
    async with as_caller(api, red) as calling:
        yield calling


@pytest.fixture
async def as_blue(api: Api, blue: Tenant) -> AsyncIterator[Api]:
    async with as_caller(api, blue) as calling:
        yield calling


Things = dict[str, str]
"""What one project has: ids of each kind. `batch` is one that has ended."""


async def make_things(api: Api, db: Database, player: Player, admin: Administration, owner: Tenant) -> Things:
    """Makes one thing of each kind, through the API where it can."""
    project = owner.project
    call = {"type": "function_call", "call_id": f"call_{random_suffix()}", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": SECRET_TEXT}
    message = {"type": "message", "role": "user", "content": SECRET_TEXT}
    hook = await hook_of(api)
    response = await api.background(input=[message, call, output], stream=True)
    await player.answer(SECRET_TEXT, response_id=response)
    running = await api.background(input=SECRET_TEXT)
    await player.begin(running)
    thought: Json = {"type": "reasoning", "id": f"rs_{random_suffix()}", "summary": []}
    thought["content"] = [{"type": "reasoning_text", "text": SECRET_TEXT}]
    approval = {"type": "mcp_approval_request", "id": f"mcpr_{random_suffix()}"}
    approval |= {"server_label": "docs", "name": "read", "arguments": "{}"}
    made = await api.client.post("/v1/conversations", json={"items": [message, thought, approval]})
    assert made.status_code == 200, made.text
    conversation = made.json()["id"]
    items = (await api.client.get(f"/v1/conversations/{conversation}/items?order=asc")).json()["data"]
    row, sealer = await row_of(db, response), await SharedSealer(db).get(project)
    assert row.output is not None
    return {
        "response": response,
        "running": running,
        "output_item": row.output[0]["id"],
        "input_item": row.request["input"][0]["id"],
        "call": call["call_id"],
        "conversation": conversation,
        "item": items[0]["id"],
        "thought": items[1]["id"],
        "approval": items[2]["id"],
        "sealed_thought": sealer.seal(SealedKind.REASONING, SECRET_TEXT),
        "sealed_summary": sealer.seal(SealedKind.COMPACTION, SECRET_TEXT),
        "project": project,
        "account": (await ServiceAccounts(admin._changes).create(project, SECRET_TEXT, None))[0].id,
        "key": owner.key.row.id,
        "file": await file_of(api),
        "batch": await batch_of(api, db),
        "hook": hook,
        "event": (await api.client.get(f"/v1/webhook_endpoints/{hook}/deliveries")).json()["data"][0]["id"],
    }


async def hook_of(api: Api) -> str:
    body = {"name": SECRET_TEXT, "url": "https://hooks.example/", "event_types": ["response.completed"]}
    made: str = (await api.client.post("/v1/webhook_endpoints", json=body)).json()["id"]
    return made


async def batch_of(api: Api, db: Database) -> str:
    """A batch that was cancelled before anybody read its file."""
    sent: Any = {"data": {"purpose": "batch"}, "files": {"file": (SECRET_TEXT, b"{}")}}
    file = (await api.client.post("/v1/files", **sent)).json()["id"]
    body = {"input_file_id": file, "endpoint": "/v1/responses", "completion_window": "24h"}
    made: str = (await api.client.post("/v1/batches", json=body)).json()["id"]
    await change(db, "UPDATE batches SET status = 'cancelled' WHERE id = :id", id=made)
    return made


async def file_of(api: Api) -> str:
    sent: Any = {"data": {"purpose": "user_data"}, "files": {"file": (SECRET_TEXT, SECRET_TEXT.encode())}}
    made: str = (await api.client.post("/v1/files", **sent)).json()["id"]
    return made


def nothing() -> Things:
    """Ids of the same forms that nobody has."""
    suffix = random_suffix()
    return dict(
        **dict.fromkeys(("response", "running"), new_id("resp")),
        **dict.fromkeys(("item", "input_item"), f"msg_{suffix}_in0"),
        output_item=f"msg_{suffix}_1",
        call=f"call_{suffix}",
        conversation=new_id("conv"),
        thought=f"rs_{suffix}",
        approval=f"mcpr_{suffix}",
        sealed_thought="lh1_" + "A" * 64,
        sealed_summary="lh1_" + "B" * 64,
        project=new_id("proj"),
        account=new_id("svc_acct"),
        key=new_id("key"),
        file=new_id("file"),
        batch=new_id("batch"),
        hook=new_id("we"),
        event=f"evt_{'0' * 12}{suffix[-28:]}",
    )


@dataclass(frozen=True)
class Way:
    """One way to name a thing. `route` is the template of its path."""

    method: str
    route: str
    query: str = ""
    body: Json | None = None
    form: Json | None = None
    """Form of a file's upload, in place of `body`."""
    path: str = ""
    """If it is not `route` with the ids of the things."""

    def request(self, things: Things, own: Things) -> tuple[str, str, Json | None]:
        """`own` is what the caller itself has."""
        values = {f"their_{name}": value for name, value in things.items()}
        values |= {f"own_{name}": value for name, value in own.items()}
        values |= {f"{name}_id": things[name] for name in ("response", "conversation", "item", "project", "key")}
        values |= {f"{name}_id": things[name] for name in ("file", "batch", "event")}
        values["webhook_endpoint_id"] = things["hook"]
        values["service_account_id"] = things["account"]
        filled = json.loads(_filled(json.dumps(self.body), values))
        return self.method, _filled((self.path or self.route) + self.query, values), filled


def _filled(template: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        template = template.replace(f"{{{name}}}", value)
    return template


CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"
CREATE, COUNT, COMPACT = "/v1/responses", "/v1/responses/input_tokens", "/v1/responses/compact"
ONE, CONVERSATION = "/v1/responses/{response_id}", "/v1/conversations/{conversation_id}"
ITEMS, ITEM = f"{CONVERSATION}/items", f"{CONVERSATION}/items/{{item_id}}"


def creating(route: str = CREATE, **fields: Any) -> Way:
    common = {"model": MODEL, **({"background": True} if route == CREATE else {})}
    return Way("POST", route, body={**common, "input": "Hello!", **fields})


def referring(item_id: str) -> list[Json]:
    return [{"type": "item_reference", "id": item_id}]


THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "{their_sealed_thought}"}
SUMMARY = {"type": "compaction", "encrypted_content": "{their_sealed_summary}"}
OUTPUT = {"type": "function_call_output", "call_id": "{their_call}", "output": "42"}
TOLD = {"role": "tool", "tool_call_id": "{their_call}", "content": "42"}
RETURNED = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "{their_call}", "content": "42"}]}
APPROVAL = {"type": "mcp_approval_response", "approve": True, "approval_request_id": "{their_approval}"}

FILE = "/v1/files/{file_id}"
BATCH = "/v1/batches/{batch_id}"
HOOK = "/v1/webhook_endpoints/{webhook_endpoint_id}"
BATCHED: Json = {"input_file_id": "{their_file}", "endpoint": CREATE, "completion_window": "24h"}
READING = [
    Way("GET", HOOK),
    Way("GET", f"{HOOK}/deliveries"),
    Way("GET", BATCH),
    Way("GET", f"{BATCH}/results"),
    Way("GET", FILE),
    Way("GET", f"{FILE}/content"),
    Way("GET", ONE),
    Way("GET", ONE, "?include=reasoning.encrypted_content"),
    Way("GET", ONE, "?stream=true"),
    Way("GET", ONE, "?stream=true&starting_after=0"),
    Way("GET", f"{ONE}/input_items"),
    Way("GET", CONVERSATION),
    Way("GET", ITEMS),
    Way("GET", ITEM),
]
CONTINUING = [
    creating(previous_response_id="{their_response}"),
    creating(previous_response_id="{their_response}", input=[OUTPUT]),
    creating(conversation="{their_conversation}"),
    creating(conversation={"id": "{their_conversation}"}),
    creating(input=referring("{their_output_item}")),
    creating(input=referring("{their_input_item}")),
    creating(input=referring("{their_item}")),
    creating(input=referring("{their_thought}")),
    creating(input=[THOUGHT]),
    creating(input=[SUMMARY]),
    Way("POST", "/v1/conversations", body={"items": referring("{their_output_item}")}),
    Way("POST", "/v1/conversations", body={"items": [SUMMARY]}),
    Way("POST", ITEMS, body={"items": referring("{their_output_item}")}),
]
ONLY_REFUSED = [
    Way("GET", "/v1/webhook_endpoints", "?after={their_hook}"),
    Way("POST", "/v1/webhook_endpoints", body={"name": "a"}),
    Way("POST", f"{HOOK}/test", body={"event_type": "response.failed"}),
    Way("GET", "/v1/events", "?after={their_event}"),
    Way("GET", CREATE, "?after={their_response}"),
    Way("GET", "/v1/batches", "?after={their_batch}"),
    Way("POST", "/v1/batches", body=BATCHED),
    Way("POST", f"{BATCH}/retry_failed"),
    Way("GET", "/v1/files", "?after={their_file}"),
    Way("POST", "/v1/files", form={"file": ("a", b"x")}),
    creating(COUNT, previous_response_id="{their_response}"),
    creating(COUNT, conversation="{their_conversation}"),
    creating(COUNT, input=referring("{their_item}")),
    creating(COMPACT, previous_response_id="{their_response}"),
    creating(COMPACT, input=[SUMMARY]),
    creating(previous_response_id="{own_response}", input=[OUTPUT]),
    creating(conversation="{own_conversation}", input=[APPROVAL]),
    creating(input=[APPROVAL]),
    creating(input=[OUTPUT]),
    Way("POST", CHAT, body={"model": MODEL, "messages": [TOLD]}),
    Way("POST", MESSAGES, body={"model": MODEL, "max_tokens": 16, "messages": [RETURNED]}),
    Way("POST", f"{MESSAGES}/count_tokens", body={"model": MODEL, "messages": [RETURNED]}),
    Way("GET", ITEM, path="/v1/conversations/{own_conversation}/items/{their_item}"),
    Way("GET", ITEM, path="/v1/conversations/{their_conversation}/items/{own_item}"),
    Way("DELETE", ITEM, path="/v1/conversations/{own_conversation}/items/{their_item}"),
    Way("POST", ITEMS, path="/v1/conversations/{own_conversation}/items", body={"items": referring("{their_item}")}),
    Way("GET", ITEMS, "?after={their_item}", path="/v1/conversations/{own_conversation}/items"),
    Way("GET", f"{ONE}/input_items", "?after={their_input_item}", path="/v1/responses/{own_response}/input_items"),
]
"""Ways that need a worker, or that no caller may take."""
CHANGING = [
    Way("POST", f"{HOOK}/deliveries/{{event_id}}/replay"),
    Way("POST", f"{HOOK}/rotate_secret"),
    Way("POST", HOOK, body={"name": "b"}),
    Way("DELETE", HOOK),
    Way("POST", f"{BATCH}/cancel"),
    Way("DELETE", FILE),
    Way("POST", CONVERSATION, body={"metadata": {"a": "b"}}),
    Way("POST", f"{ONE}/cancel", path="/v1/responses/{their_running}/cancel"),
    Way("DELETE", ITEM),
    Way("DELETE", CONVERSATION),
    Way("DELETE", ONE),
]
WAYS = [*READING, *CONTINUING, *ONLY_REFUSED, *CHANGING]

ORGANIZATION, OPERATOR = "/v1/organization", "/v1/operator"
ACCOUNT = f"{ORGANIZATION}/projects/{{project_id}}/service_accounts/{{service_account_id}}"
KEY = f"{ORGANIZATION}/projects/{{project_id}}/api_keys/{{key_id}}"
NAMED: Json = {"name": "mine"}
BODIES: dict[str, Json] = {ACCOUNT: NAMED, f"{ACCOUNT}/api_keys": NAMED, KEY: {"scopes": ["responses"]}}


def routes_of(api: Api) -> set[tuple[str, str]]:
    app: Any = api.server.config.app
    every = [(route.path, getattr(route, "methods", None) or {"WEBSOCKET"}) for route in app.routes]
    return {(method, path) for path, methods in every for method in methods if method != "HEAD"}


def administering(api: Api) -> list[Way]:
    """What no key of a project may do, whatever its scopes."""
    every = sorted(routes_of(api))
    return [Way(*each, body=BODIES.get(each[1])) for each in every if each[1].startswith((ORGANIZATION, OPERATOR))]


OF_ONE_ANSWER = frozenset({"content-length", "date", "openai-processing-ms", "request-id", "x-request-id"})
"""Headers that differ from answer to answer."""


async def seen(api: Api, way: Way, things: Things, own: Things) -> tuple[int, str, dict[str, str]]:
    """Returns status, body and headers. Ids of `things` are THEIRS in the body."""
    method, path, body = way.request(things, own)
    sent: Any = {"json": body} if way.form is None else {"files": way.form}
    answer: httpx.Response = await api.client.request(method, path, **sent)
    headers = {name: value for name, value in answer.headers.items() if name not in OF_ONE_ANSWER}
    return answer.status_code, anonymous(answer.text, things), headers


def anonymous(text: str, things: Things) -> str:
    for value in things.values():
        text = text.replace(value, "THEIRS")
    return re.sub(r'"request_id":"[^"]*"', "", text)  # which errors of messages have in their bodies


async def snapshot(api: Api, things: Things) -> list[Any]:
    """What its owner sees of it."""
    paths = [f"/v1/responses/{things['response']}", f"/v1/responses/{things['running']}"]
    paths += [f"/v1/files/{things['file']}", "/v1/files"]
    paths += [f"/v1/conversations/{things['conversation']}", f"/v1/conversations/{things['conversation']}/items"]
    return [(await api.client.get(path)).json() for path in paths]


async def test_another_project_s_thing_is_answered_like_one_that_is_not_there(
    api: Api, as_red: Api, as_blue: Api, red: Tenant, blue: Tenant, db: Database, player: Player, admin: Administration
) -> None:
    of_nobody = ("/health/", "/v1/models", "/v1/webhook_event_types", "/docs", "/openapi.json", ORGANIZATION, OPERATOR)
    asked = {(way.method, way.route) for way in WAYS} | {("WEBSOCKET", CREATE)}
    assert asked == {each for each in routes_of(api) if each[1] != "/" and not each[1].startswith(of_nobody)}, (
        "every route"
    )
    reds = await make_things(as_red, db, player, admin, red)
    blues = await make_things(as_blue, db, player, admin, blue)
    before = await snapshot(as_red, reds)
    for way in WAYS:
        theirs = await seen(as_blue, way, reds, blues)
        assert theirs == await seen(as_blue, way, nothing(), blues), way
        assert theirs[0] in (400, 404) or "after=" in way.query, (way, theirs)
        assert SECRET_TEXT not in theirs[1] or "after=" in way.query, way
    async with socket_of(api, blue.headers) as socket:
        for way in [*CONTINUING, *ONLY_REFUSED]:
            if (way.method, way.route) == ("POST", CREATE):
                theirs_there = await error_over(socket, way, reds, blues)
                assert theirs_there == await error_over(socket, way, nothing(), blues), way
    async with as_caller(api, await admin.create_key(None, "admin", OPERATOR_SCOPES)) as administrator:
        ways = [way for way in administering(api) if way.route.startswith((ACCOUNT, KEY))]
        for way in ways:  # to another project's account or key, by the path of the wrong project
            astray = replace(way, path=way.route.replace("{project_id}", "{own_project}"))
            theirs = await seen(administrator, astray, reds, blues)
            assert theirs == await seen(administrator, astray, nothing(), blues), way
            assert theirs[0] == 404, (way, theirs)
        right = [way for way in ways if way.method == "GET" and way.route in (ACCOUNT, KEY)]
        assert [(await seen(administrator, way, reds, blues))[0] for way in right] == [200, 200]
    # Clients that keep only ids send reasoning without its text, and the store has the text.
    empty = [{"type": "reasoning", "id": reds["thought"], "summary": []}, {"role": "user", "content": "Go on."}]
    found, missing = [await caller.background(input=empty) for caller in (as_red, as_blue)]
    assert SECRET_TEXT in str((await row_of(db, found)).request)
    assert SECRET_TEXT not in str((await row_of(db, missing)).request)
    assert await snapshot(as_red, reds) == before
    for way in [*READING, *CONTINUING, *CHANGING]:
        own = await seen(as_red, way, reds, reds)
        assert own[0] == 200, (way, own, "the owner may: otherwise this test shows nothing")


async def error_over(socket: ClientConnection, way: Way, things: Things, own: Things) -> str:
    """The refusal of a way over a WebSocket. Ids of `things` are THEIRS."""
    fields = dict(way.request(things, own)[2] or {})
    del fields["background"]
    event = await answer_to(socket, json.dumps({"type": "response.create", **fields}))
    assert event["type"] == "error", event
    return anonymous(json.dumps(event), things)


SCOPES = [frozenset(each) for each in ({Scope.RESPONSES}, {Scope.READ}, {Scope.BATCHES, Scope.FILES}, OPERATOR_SCOPES)]
assert frozenset().union(*SCOPES) == frozenset(Scope)


async def test_no_scope_tells_another_project_s_thing_from_one_that_is_not_there(
    api: Api, as_red: Api, red: Tenant, db: Database, player: Player, admin: Administration
) -> None:
    reds = await make_things(as_red, db, player, admin, red)
    before = await snapshot(as_red, reds)
    blue = (await admin.create_project("blue")).id
    for scopes in SCOPES:
        project = None if scopes == OPERATOR_SCOPES else blue
        async with as_caller(api, await admin.create_key(project, "curious", scopes)) as curious:
            for way in [*WAYS, *([] if project is None else administering(api))]:
                own = nothing()
                theirs = await seen(curious, way, reds, own)
                assert theirs == await seen(curious, way, nothing(), own), (scopes, way)
                assert SECRET_TEXT not in theirs[1], (scopes, way)
                assert way in WAYS or theirs[0] == 403, (scopes, way, theirs)
    assert await snapshot(as_red, reds) == before


async def test_idempotency_keys_rows_and_the_engine_s_cache_belong_to_the_key_s_project(
    api: Api, as_red: Api, as_blue: Api, red: Tenant, blue: Tenant, db: Database, admin: Administration
) -> None:
    headers = {"idempotency-key": "one-key-for-both"}
    bodies = [{"model": MODEL, "input": text, "background": True} for text in ("red", "blue", "red")]
    callers = (as_red, as_blue, as_red)
    made = [
        (await caller.client.post("/v1/responses", json=body, headers=headers)).json()["id"]
        for caller, body in zip(callers, bodies, strict=True)
    ]
    assert made[0] == made[2] != made[1]
    rows = []
    for caller, project in ((as_red, red.project), (as_blue, blue.project)):
        for fields in ({}, {"cache_salt": "mine"}):
            row = await row_of(db, await caller.background(**fields))
            assert row.project == project
            rows.append(row)
    salts = [row.request["extra"]["cache_salt"] for row in rows]
    assert len(set(salts)) == 4 and "mine" not in salts
    shown = (await as_red.get(rows[0].id)).text
    assert not any(salt in shown for salt in salts), "no answer shows a salt"
    async with as_caller(api, await tenant(admin, "mine", project="default")) as calling:
        plain, salted = [await calling.background(**fields) for fields in ({}, {"cache_salt": "mine"})]
    assert (await row_of(db, plain)).request["extra"] == {}
    assert (await row_of(db, salted)).request["extra"] == {"cache_salt": "mine"}
