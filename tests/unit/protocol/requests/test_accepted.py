"""What becomes of each form of a request that is accepted: the stored request, by the paths of its fields."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from openai.types import responses as sdk
from openai.types.responses.response_output_item import LocalShellCall, McpApprovalRequest, McpCall, McpListTools
from pydantic import TypeAdapter

from app.protocol.hosted_kinds import WEB_SEARCH
from app.protocol.local_kinds import LOCAL_TOOLS
from app.protocol.requests.bodies.create_response import CreateResponse
from app.protocol.requests.bodies.vllm_params import ENGINE_PARAMS
from app.protocol.response import response_object
from app.protocol.tasks import COMPACT
from tests.support.deltas import RICH, play
from tests.support.refusals import (
    ADDED,
    APPROVAL,
    CALL,
    CODE,
    CODE_CALL,
    CUSTOM,
    DOCS_URL,
    FOUND,
    FUNCTION,
    IMAGE,
    LATER,
    LOCAL_CALL,
    LOCAL_OUTPUT,
    MCP,
    MCP_CALL,
    MCP_LIST,
    NAMESPACE,
    OUTPUT,
    PATCH_CALL,
    PATCH_OUTPUT,
    SCHEMA,
    SEARCH,
    SEARCHED,
    SHELL_CALL,
    SHELL_OUTPUT,
    TRIGGER,
    WEB,
    WEB_CALL,
)
from tests.support.requests import parse_request

Json = dict[str, Any]


def stored(**fields: Any) -> Json:
    body = {"model": "m", "input": "x", **fields}
    return parse_request(orjson.dumps(body)).stored("resp_1", {"temperature": 0.6, "top_p": 0.95})


def named(kind: str, name: str) -> Json:
    return {"type": kind, "name": name}


def allowed(mode: str, *tools: Json) -> Json:
    return {"type": "allowed_tools", "mode": mode, "tools": list(tools)}


def said(role: str, content: Any, **more: Any) -> Json:
    return {"role": role, "content": content, **more}


def text(value: str) -> Json:
    return {"type": "input_text", "text": value}


def output_text(value: str) -> Json:
    return {"type": "output_text", "text": value, "annotations": [], "logprobs": []}


def thinking(effort: str | None = None, summary: str | None = None, **more: Any) -> Json:
    return {"reasoning": {"effort": effort, "summary": summary, **more}}


def compacting(**threshold: Any) -> Json:
    return {"context_management": [{"type": "compaction", **threshold}]}


FORM = {"type": "json_schema", "name": "n", "schema": SCHEMA}
CHAT = [{"role": "user", "content": "x"}]
EXTRAS: Json = {
    "top_k": 5,
    "min_p": 0.1,
    "repetition_penalty": 1.1,
    "seed": 0,
    "min_tokens": 1,
    "ignore_eos": False,
    "stop": ["a", "b"],
    "include_stop_str_in_output": True,
    "stop_token_ids": [1],
    "bad_words": ["x"],
    "logit_bias": {"5": -100},
    "allowed_token_ids": [1, 2],
    "skip_special_tokens": False,
    "thinking_token_budget": 10,
    "chat_template_kwargs": {"enable_thinking": False},
    "cache_salt": "s",
    "priority": -1,
}
STORED_AS_SENT: Json = {
    "instructions": "Be brief.",
    "temperature": 0.25,
    "top_p": 0.5,
    "presence_penalty": 1.0,
    "frequency_penalty": -1.0,
    "max_output_tokens": 7,
    "store": False,
    "stream": True,
    "background": True,
    "user": "u",
    "safety_identifier": "s",
    "prompt_cache_key": "p",
    "prompt_cache_retention": "24h",
    "tool_choice": "none",
    "parallel_tool_calls": False,
    "max_tool_calls": 3,
    "truncation": "auto",
    "top_logprobs": 2,
    "include": ["message.output_text.logprobs"],
    "previous_response_id": "resp_0",
    "service_tier": "flex",
    "enable_response_messages": True,
}
TIERS = {
    "auto": "default",
    "default": "default",
    "flex": "flex",
    "priority": "priority",
    "fast": "priority",
    "ultrafast": "priority",
    "scale": "default",
}

FIELDS: list[tuple[Json, Json]] = [
    (STORED_AS_SENT, STORED_AS_SENT),
    ({"top_p": 0.5}, {"temperature": 0.6, "top_p": 0.5, "presence_penalty": 0.0}),  # a model's default
    *(({"service_tier": sent}, {"service_tier": serves}) for sent, serves in TIERS.items()),
    *(({"conversation": sent}, {"conversation": {"id": "c"}}) for sent in ("c", {"id": "c"})),
    ({"top_logprobs": 2}, {"include": ["message.output_text.logprobs"]}),
    ({"top_logprobs": 0}, {"include": []}),
    *(
        ({"include": [each]}, {"include": [each]})
        for each in ("code_interpreter_call.outputs", "web_search_call.action.sources")
    ),
    (EXTRAS, {"extra": EXTRAS}),
    ({"seed": 0}, {"extra": {"seed": 0}}),
    ({"stop": "a"}, {"extra": {"stop": ["a"]}}),
    ({"min_tokens": 4, "max_output_tokens": 4}, {"max_output_tokens": 4}),
    ({"metadata": {"k": "v" * 512}}, {"metadata": {"k": "v" * 512}}),
    ({"prompt_cache_retention": "in_memory"}, {"prompt_cache_retention": "in_memory"}),
    (compacting(compact_threshold=None), {"compaction": {"threshold": None}}),
    (compacting(compact_threshold=1000), {"compaction": {"threshold": 1000}}),
    # A request that continues something needs no input.
    ({"input": None, "previous_input_messages": CHAT}, {"input": [], "previous_input_messages": CHAT}),
    ({"input": None, "previous_response_id": "resp_0"}, {"input": []}),
    ({"input": [], "conversation": "conv_1"}, {"input": []}),
    # A trigger is a task and no item.
    ({"input": [{**TRIGGER, "id": "ct_1"}], "previous_response_id": "resp_1"}, {"task": COMPACT, "input": []}),
    ({"input": "x"}, {"task": None}),
    # text and reasoning
    *(({"text": sent}, {"text": {"format": {"type": "text"}}}) for sent in ({}, {"format": None, "verbosity": None})),
    ({"text": {"format": {"type": "json_object"}}}, {"text": {"format": {"type": "json_object"}}}),
    (
        {"text": {"format": FORM, "verbosity": "low"}},
        {"text": {"format": {**FORM, "strict": False, "description": None}, "verbosity": "low"}},
    ),
    (
        {"text": {"format": {**FORM, "strict": True}}},
        {"text": {"format": {**FORM, "strict": True, "description": None}}},
    ),
    ({"reasoning": {}}, thinking()),
    *(
        ({"reasoning": {"effort": effort}}, thinking(effort))
        for effort in ("none", "minimal", "low", "medium", "high", "xhigh", "max")
    ),
    *(
        ({"reasoning": {name: summary}}, thinking(None, summary))
        for name in ("summary", "generate_summary")
        for summary in ("auto", "concise", "detailed")
    ),
    ({"reasoning": {"summary": "auto", "generate_summary": "auto"}}, thinking(None, "auto")),
    *(({"reasoning": {"context": each}}, thinking(context=each)) for each in ("auto", "current_turn", "all_turns")),
    ({"reasoning": {"context": None}}, thinking()),
    ({"reasoning_effort": "low"}, thinking("low")),  # Open WebUI's name
    ({"reasoning_effort": "low", "reasoning": {"effort": "low", "summary": "auto"}}, thinking("low", "auto")),
]


def test_what_becomes_of_the_fields_of_a_request() -> None:
    for sent, kept in FIELDS:
        document = stored(**sent)
        assert {name: document[name] for name in kept} == kept


def test_every_extra_is_in_the_table() -> None:
    assert set(EXTRAS) == set(ENGINE_PARAMS)


F, SQL = {**FUNCTION, "description": None}, {**CUSTOM, "description": None, "format": {"type": "text"}}
PLAIN = {**named("function", "g"), "description": "Does.", "parameters": None, "strict": None}
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start: /a/"}
LATE = {**LATER, "description": None}
SERVERS_SEARCH = {"type": "tool_search", "execution": "server", "description": None, "parameters": None}
SKILLED = {"type": "local", "skills": [{"name": "pdf", "description": "Reads PDFs.", "path": "/skills/pdf"}]}
ROME = {"type": "approximate", "city": "Rome", "country": "IT"}
ASKED = {**WEB, "search_context_size": "medium", "user_location": None, "filters": None}
DOMAINS = {"allowed_domains": ["a.example"], "blocked_domains": ["b.a.example"]}
UNRULED = {"server_url": None, "server_description": None, "allowed_tools": None, "require_approval": "always"}
DOCS = {**MCP, "server_url": DOCS_URL, "server_description": "Docs.", "allowed_tools": ["read"]}
RULE = {"always": {"tool_names": ["write"]}, "never": {"read_only": True}}
WHOLE_RULE = {"always": {"tool_names": ["write"], "read_only": None}, "never": {"tool_names": None, "read_only": True}}

TOOLS: list[tuple[Json, Json]] = [
    (FUNCTION, F),
    (PLAIN, PLAIN),
    ({**named("function", "g"), "description": "Does."}, PLAIN),
    *(({**FUNCTION, "name": name}, {**F, "name": name}) for name in ("fs.read_file", "a.b.c", "mcp__echo.say-it", ".")),
    (CUSTOM, SQL),
    *(
        ({**CUSTOM, "format": {**GRAMMAR, "syntax": syntax}}, {**SQL, "format": {**GRAMMAR, "syntax": syntax}})
        for syntax in ("lark", "regex")
    ),
    (NAMESPACE, {**NAMESPACE, "tools": [F, SQL]}),
    (SEARCH, SEARCH),
    *(
        ({"type": "shell", **more}, {"type": "shell", "environment": {"type": "local"}})
        for more in ({}, {"environment": None})
    ),
    ({"type": "shell", "environment": SKILLED}, {"type": "shell", "environment": SKILLED}),
    *(({"type": kind}, {"type": kind}) for kind in ("apply_patch", "local_shell")),
    (CODE, CODE),
    (WEB, ASKED),
    (ASKED, ASKED),  # as the Agents SDK writes it
    (
        {**WEB, "search_context_size": "high", "filters": DOMAINS, "user_location": {**ROME, "region": None}},
        {**WEB, "search_context_size": "high", "filters": DOMAINS, "user_location": ROME},
    ),
    (
        {**WEB, "filters": {"allowed_domains": []}, "user_location": {"type": "approximate"}},
        {**ASKED, "user_location": {"type": "approximate"}},
    ),
    (MCP, {**MCP, **UNRULED}),
    ({**MCP, "require_approval": "never"}, {**MCP, **UNRULED, "require_approval": "never"}),
    ({**DOCS, "require_approval": RULE}, {**DOCS, "require_approval": WHOLE_RULE}),
    (
        {**MCP, "allowed_tools": {"read_only": True}},
        {**MCP, **UNRULED, "allowed_tools": {"tool_names": None, "read_only": True}},
    ),
]


def test_what_becomes_of_a_tool() -> None:
    for sent, kept in TOOLS:
        assert stored(tools=[sent])["tools"] == [kept]


def test_what_becomes_of_several_tools() -> None:
    """The names of a namespace are its own, and tools that load later need a search, which may be the server's."""
    for sent, kept in (
        ([FUNCTION, NAMESPACE], [F, {**NAMESPACE, "tools": [F, SQL]}]),
        ([MCP, {**MCP, "server_label": "wiki"}], [{**MCP, **UNRULED}, {**MCP, **UNRULED, "server_label": "wiki"}]),
        ([SEARCH, LATER], [SEARCH, LATE]),
        ([{"type": "tool_search"}, LATER], [SERVERS_SEARCH, LATE]),
    ):
        assert stored(tools=sent)["tools"] == kept


CHOICES: list[tuple[list[Json], Any]] = [
    *(([FUNCTION, CUSTOM], choice) for choice in ("none", "auto", "required", named("function", "f"))),
    ([FUNCTION, CUSTOM], named("custom", "sql")),
    ([FUNCTION, CUSTOM], allowed("auto", named("function", "f"))),
    ([FUNCTION, CUSTOM], allowed("required", named("custom", "sql"))),
    ([{**FUNCTION, "name": "fs.read"}], named("function", "fs.read")),
    *(([NAMESPACE], choice) for choice in (named("function", "n.f"), named("custom", "n.sql"))),
    ([NAMESPACE], allowed("auto", named("custom", "n.sql"))),
    *(([{"type": kind}], {"type": kind}) for kind in (*sorted(LOCAL_TOOLS), *WEB_SEARCH.tool_types)),
    ([{"type": "shell"}], allowed("required", {"type": "shell"})),
    ([CODE], {"type": "code_interpreter"}),
    *(([MCP], {"type": "mcp", "server_label": "docs", **more}) for more in ({}, {"name": "read"})),
    ([MCP], "required"),
    ([WEB, MCP], allowed("required", {"type": "mcp", "server_label": "docs"}, {"type": "web_search_preview"})),
]


def test_every_form_of_a_choice_is_kept() -> None:
    for tools, choice in CHOICES:
        document = stored(tools=tools, tool_choice=choice)
        assert document["tool_choice"] == choice
        assert [tool["type"] for tool in document["tools"]] == [tool["type"] for tool in tools]
    for name in ("n.late", "f"):  # tools that items bring
        choice = named("function", name)
        assert stored(input=[SEARCHED, FOUND, ADDED], tool_choice=choice)["tool_choice"] == choice


HI = {"type": "message", "id": "msg_1_in0", "status": "completed", "role": "user", "content": [text("Hi")]}
NOTE = {"type": "url_citation", "url": "u", "title": "t", "start_index": 0, "end_index": 1}
NOTED = {"status": "incomplete", "phase": "final_answer", "content": [{**output_text("Hi"), "annotations": [NOTE]}]}
REFUSED = {"type": "refusal", "refusal": "No."}
WRITTEN = {"type": "custom_tool_call", "call_id": "d", "name": "sql", "input": "x"}
UNCALLED = {"type": "function_call_output", "namespace": "codex_app", "name": "wake_up", "output": "It is nine."}
DONE = {"status": "completed"}
ANSWERED = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": False, "reason": "no"}
RUN = {**LOCAL_CALL["action"], "timeout_ms": None, "user": None, "working_directory": None}
LS = {"commands": ["ls"], "max_output_length": None, "timeout_ms": None}

ITEMS: list[tuple[Json, Json]] = [
    *((said(role, "Hi"), {**HI, "role": role}) for role in ("user", "system", "developer")),
    (said("user", "Hi", type="message"), HI),
    (said("user", [text("Hi"), text("")]), {**HI, "content": [text("Hi"), text("")]}),
    (said("assistant", "Hi", phase=None), {**HI, "role": "assistant", "content": [output_text("Hi")]}),
    *(
        (said("assistant", [part]), {"content": [output_text("Hi")]})
        for part in (text("Hi"), {"type": "output_text", "text": "Hi"}, {**output_text("Hi"), "logprobs": None})
    ),
    ({"role": "assistant", **NOTED}, NOTED),
    (said("assistant", [REFUSED, output_text("Hi")]), {"content": [REFUSED, output_text("Hi")]}),
    (said("assistant", "Hi", id="msg_x"), {"id": "msg_x"}),
    *((said("assistant", empty), {"role": "assistant"}) for empty in ("", [])),
    (
        said("user", [IMAGE, {**IMAGE, "detail": "high"}]),
        {"content": [{**IMAGE, "detail": "auto"}, {**IMAGE, "detail": "high"}]},
    ),
    *(
        (sent, {"type": "item_reference", "id": "msg_1"})
        for sent in ({"type": "item_reference", "id": "msg_1"}, {"id": "msg_1"}, {"id": "msg_1", "type": None})
    ),
    (CALL, {**CALL, **DONE, "id": "fc_1_in0"}),
    ({**CALL, "namespace": "n"}, {"namespace": "n"}),
    (WRITTEN, {**WRITTEN, **DONE, "id": "ctc_1_in0"}),
    # So Codex tells a model what happens elsewhere; OpenAI's API takes it.
    *(({**UNCALLED, **absent}, {**UNCALLED, **DONE, "id": "fco_1_in0"}) for absent in ({}, {"call_id": None})),
    (SEARCHED, {**SEARCHED, **DONE, "id": "tsc_1_in0"}),
    (ADDED, {"id": "at_1_in0", "role": "developer", "tools": [F, SEARCH]}),
    (SHELL_CALL, {"id": "sh_1_in0", "action": LS}),
    (PATCH_CALL, {"id": "apc_1_in0", "operation": PATCH_CALL["operation"]}),
    (LOCAL_CALL, {"id": "lsh_1_in0", "action": RUN}),
    (APPROVAL, APPROVAL),
    (ANSWERED, {**ANSWERED, "id": "mcpa_1_in0"}),
]
OUTPUTS: list[tuple[Json, Json, Json]] = [
    (CALL, OUTPUT, {**OUTPUT, **DONE, "id": "fco_1_in1"}),
    (CALL, {**OUTPUT, "namespace": "n"}, {**OUTPUT, **DONE, "id": "fco_1_in1"}),
    (CALL, {**OUTPUT, "output": [text("a"), IMAGE]}, {"output": [text("a"), {**IMAGE, "detail": "auto"}]}),
    (WRITTEN, {"type": "custom_tool_call_output", "call_id": "d", "output": "1"}, {"id": "ctco_1_in1", "output": "1"}),
    (SEARCHED, FOUND, {"id": "tso_1_in1", "execution": "client", "tools": [{**NAMESPACE, "tools": [LATE]}]}),
    (SHELL_CALL, SHELL_OUTPUT, {"id": "sho_1_in1", "output": SHELL_OUTPUT["output"]}),
    (PATCH_CALL, PATCH_OUTPUT, {"id": "apco_1_in1", "status": "completed", "output": "Done."}),
    (LOCAL_CALL, LOCAL_OUTPUT, {"id": "lsho_1_in1", "output": "a"}),
    # OpenAI's types have no `call_id` here: the output names its call by its own id.
    (LOCAL_CALL, {"type": "local_shell_call_output", "id": "l", "output": "a"}, {"id": "lsho_1_in1", "call_id": "l"}),
]


def test_what_becomes_of_an_item() -> None:
    assert stored(input="")["input"][0]["content"] == [text("")]
    for sent, kept in ITEMS:
        (item,) = stored(input=[sent])["input"]
        assert item | kept == item
        assert "phase" not in item or "phase" in kept


def test_what_becomes_of_an_output_behind_its_call() -> None:
    for call, output, kept in OUTPUTS:
        _, item = stored(input=[call, output])["input"]
        assert item | kept == item
        assert "namespace" not in item


METADATA = {"session_id": "s", "x-codex-turn-metadata": json.dumps({"workspaces": "w" * 4000})}
SAME: list[Json] = [
    *({field: None} for field in sorted(set(CreateResponse.model_fields) - {"model", "input"})),
    {"stream_options": {"include_obfuscation": False}},
    {"stream_options": {"reasoning_summary_delivery": "sequential_cutoff"}},
    {"context_management": []},
    {"access_programs": {}},
    {"access_programs": {"cyber": "standard"}},
    {"background_options": {"completion_window": "soonest"}},
    {"client_metadata": METADATA},
]


def test_what_asks_for_the_default_is_stored_as_nothing() -> None:
    """Null means not sent, and a client's own metadata are kept nowhere."""
    plain = stored()
    assert [sent for sent in SAME if stored(**sent) != plain] == []


THOUGHTS: Json = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm."}]}
EQUAL: list[tuple[Json, Json]] = [
    # Empty fields are none.
    (THOUGHTS, {"id": "", "summary": [], "encrypted_content": "", "status": ""}),  # as llama.cpp writes it
    (THOUGHTS, {"id": None, "summary": "", "encrypted_content": None, "status": None}),
    ({"type": "reasoning", "summary": []}, {"content": None, "encrypted_content": ""}),
    ({"role": "assistant", "content": "Hi"}, {"id": "", "status": "", "phase": ""}),
    ({"role": "assistant", "content": []}, {"content": None}),
    ({"role": "user", "content": "x"}, {"id": "", "status": None}),
    (CALL, {"id": "", "namespace": "", "status": ""}),
    (OUTPUT, {"id": "", "name": "", "status": ""}),
    # Reasoning that Open WebUI cut out of a text.
    (THOUGHTS, {"summary": None, "content": [{"type": "output_text", "text": "Hm."}], "start_tag": "<think>"}),
]


def test_an_item_with_empty_fields_is_the_item_without_them() -> None:
    for item, more in EQUAL:
        assert stored(input=[{**item, **more}]) == stored(input=[item]), more


@pytest.mark.parametrize(
    ("output", "outputs"),
    [
        (None, []),
        ("2", [{"type": "logs", "logs": "2"}]),
        ({"stdout": "a", "result": {"x": 1}}, [{"type": "logs", "logs": '{"stdout":"a","result":{"x":1}}'}]),
        ([4], [{"type": "logs", "logs": "[4]"}]),
    ],
)
def test_code_that_open_webui_ran_is_a_call_of_the_code_interpreter(output: Any, outputs: list[Json]) -> None:
    sent = {"type": "open_webui:code_interpreter", "id": "ci_7", "lang": "python", "code": "1 + 1", "output": output}
    (item,) = stored(input=[sent])["input"]
    assert item == {**CODE_CALL, "id": "ci_7", "container_id": "open_webui", "outputs": outputs}


# -- what the openai package sends ------------------------------------------------------------------------------

OPENED = {**WEB_CALL, "action": {"type": "open_page", "url": "http://x"}}
FOUND_IN_PAGE = {**WEB_CALL, "action": {"type": "find_in_page", "url": "http://x", "pattern": "y"}}
BROKEN = {**MCP_CALL, "error": {"type": "mcp_tool_execution_error", "content": []}, "status": "failed"}
REQUEST = {"type": "mcp_approval_request", "id": "mcpr_1", "server_label": "docs", "name": "write", "arguments": "{}"}
THOUGHT = {**THOUGHTS, "id": "rs_7", "status": "completed", "summary": [], "encrypted_content": None}
SPOKEN = {"type": "message", "id": "msg_7", "role": "assistant", "status": "completed", "content": [output_text("Hi")]}
DUMPED: list[tuple[Any, Json]] = [
    (sdk.ResponseOutputMessage, SPOKEN),
    (sdk.ResponseReasoningItem, THOUGHT),
    (sdk.ResponseFunctionToolCall, {**CALL, **DONE, "id": "fc_7"}),
    (sdk.ResponseCustomToolCall, {**WRITTEN, **DONE, "id": "ctc_7"}),
    (sdk.ResponseFunctionShellToolCall, {**SHELL_CALL, **DONE, "action": LS, "id": "sh_7"}),
    (sdk.ResponseApplyPatchToolCall, {**PATCH_CALL, **DONE, "id": "apc_7"}),
    (LocalShellCall, {**LOCAL_CALL, **DONE, "action": RUN, "id": "lsh_7"}),
    (sdk.ResponseCodeInterpreterToolCall, CODE_CALL),
    *((sdk.ResponseFunctionWebSearch, item) for item in (WEB_CALL, OPENED, FOUND_IN_PAGE)),
    *((McpCall, item) for item in (MCP_CALL, BROKEN)),
    (McpListTools, MCP_LIST),
    (McpApprovalRequest, REQUEST),
]
OUTPUT_ITEM: TypeAdapter[Any] = TypeAdapter(sdk.ResponseOutputItem)
INPUT_ITEM: TypeAdapter[Any] = TypeAdapter(sdk.ResponseInputItemParam)


@pytest.mark.parametrize("dump", [{}, {"exclude_none": True}, {"exclude_unset": True}, {"by_alias": True}], ids=str)
def test_items_come_back_as_the_sdk_dumps_them(dump: Any) -> None:
    for model, item in DUMPED:
        sent = {**item, "summary": []} if model is sdk.ResponseReasoningItem else item
        (kept,) = stored(input=[model.model_validate(sent).model_dump(**dump)])["input"]
        assert kept | item == kept, model
        INPUT_ITEM.validate_python(kept)


@pytest.mark.parametrize("ending", ["stop", "length", "cancel"])
def test_an_output_can_be_sent_back_as_it_is(ending: str) -> None:
    for sequence in (RICH, RICH[:14], RICH[:1], RICH[:6]):
        output = play(sequence, ending)[0].response["output"]
        dumped = [OUTPUT_ITEM.validate_python(item).model_dump(exclude_none=True) for item in output]
        kept = stored(input=dumped)["input"]
        assert [(item["id"], item.get("status")) for item in kept] == [
            (item["id"], item.get("status")) for item in output
        ]


def test_stored_items_can_be_sent_back_as_they_are() -> None:
    own = {"execution": "server", "call_id": None, "status": "completed"}
    searched = {"type": "tool_search_call", "id": "tsc_7", "arguments": {"query": "x"}, **own}
    found = {"type": "tool_search_output", "id": "tso_7", "tools": FOUND["tools"], **own}
    sent = [SHELL_CALL, SHELL_OUTPUT, PATCH_CALL, PATCH_OUTPUT, LOCAL_CALL, LOCAL_OUTPUT, UNCALLED, searched, found]
    kept = stored(input=sent)["input"]
    assert stored(input=kept)["input"] == kept
    assert [(item["id"], item["execution"], item["call_id"]) for item in kept[-2:]] == [
        ("tsc_7", "server", None),
        ("tso_7", "server", None),
    ]


def test_the_openai_package_reads_the_echo_of_hosted_tools() -> None:
    rule = {"never": {"tool_names": ["read"]}}
    tools = [CODE, WEB, {**MCP, "allowed_tools": {"tool_names": ["read"]}, "require_approval": rule}]
    document = stored(tools=tools, tool_choice={"type": "mcp", "server_label": "docs", "name": "read"})
    sdk.Response.model_validate(response_object(document, response_id="resp_1", created_at=1), strict=False)


WITH_PARTS = [said("user", [text("x")]), said("assistant", [output_text("y")]), CALL, OUTPUT, SHELL_CALL, SHELL_OUTPUT]
WITH_TOOLS = [FUNCTION, CUSTOM, NAMESPACE, SEARCH, CODE, WEB, {**MCP, "server_url": DOCS_URL}]


def _added(value: Any, *, tops: bool = False) -> Any:
    """The items with a field of some client's own: each of them, and the parts of their contents."""
    if isinstance(value, list):
        return [_added(each, tops=tops) for each in value]
    parts = (
        {}
        if tops
        else {name: _added(value[name]) for name in ("content", "output") if isinstance(value.get(name), list)}
    )
    return {**value, **parts, "approxNumTokens": 7, "copilot_mcp_server_name": {"a": "b"}}


def test_fields_that_clients_add_to_items_and_tools_are_dropped() -> None:
    assert stored(input=_added(WITH_PARTS)) == stored(input=WITH_PARTS)
    assert stored(tools=_added(WITH_TOOLS, tops=True)) == stored(tools=WITH_TOOLS)
