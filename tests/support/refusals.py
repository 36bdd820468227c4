"""Requests that are refused, each for one fault: what is sent beside a model and an input, the code, the field named.

The unit test gives them to the models (tests/unit/protocol/requests/test_refusals.py), one test of the API to the
route (tests/integration/api/test_refusals.py).
"""

from __future__ import annotations

import base64
import io
import struct
from collections.abc import Callable, Iterable
from typing import Any

from PIL import Image

from app.protocol.include import REFUSED_INCLUDES
from app.protocol.item_types import UNSUPPORTED_ITEMS
from app.protocol.requests.fields import MAX_INCLUDED, MAX_ITEMS, MAX_NOTES, MAX_OPAQUE_BYTES, MAX_PARTS, MAX_TOOLS
from app.protocol.requests.items.content import UNSUPPORTED_PARTS
from app.protocol.requests.items.images import MAX_PIXELS
from app.protocol.requests.tools.any_tool import UNSUPPORTED_TOOLS
from app.protocol.requests.tools.choice import UNSUPPORTED_CHOICES

Json = dict[str, Any]
Case = tuple[Json, str, str]
"""What is sent, the code, the field."""
Fault = tuple[Any, str, str | Json]
"""What is sent, the code, the field; or values by field: each of them makes what is sent faulty."""

MISSING = "missing_required_parameter"
UNSUPPORTED = "unsupported_parameter"
UNKNOWN = "unknown_parameter"
KIND = "invalid_type"
VALUE = "invalid_value"
EXCLUSIVE = "mutually_exclusive_parameters"
LONG = "string_above_max_length"
MANY = "array_above_max_length"

SCHEMA: Json = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
FUNCTION: Json = {"type": "function", "name": "f", "parameters": SCHEMA, "strict": True}
CUSTOM: Json = {"type": "custom", "name": "sql"}
NAMESPACE: Json = {"type": "namespace", "name": "n", "description": "About.", "tools": [FUNCTION, CUSTOM]}
SEARCH: Json = {"type": "tool_search", "execution": "client", "description": "Finds.", "parameters": SCHEMA}
LATER: Json = {**FUNCTION, "name": "late", "defer_loading": True}
CODE: Json = {"type": "code_interpreter", "container": {"type": "auto"}}
WEB: Json = {"type": "web_search"}
MCP: Json = {"type": "mcp", "server_label": "docs"}
DOCS_URL = "https://docs.example/mcp"

CALL: Json = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"}
OUTPUT: Json = {"type": "function_call_output", "call_id": "call_1", "output": "42"}
FOUND: Json = {"type": "tool_search_output", "call_id": "s", "tools": [{**NAMESPACE, "tools": [LATER]}]}
SEARCHED: Json = {"type": "tool_search_call", "call_id": "s", "execution": "client", "arguments": {"query": "x"}}
SHELL_CALL: Json = {"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}}
_RAN = {"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}
SHELL_OUTPUT: Json = {"type": "shell_call_output", "call_id": "c", "output": [_RAN]}
_PATCH = {"type": "create_file", "path": "a.py", "diff": "+x"}
PATCH_CALL: Json = {"type": "apply_patch_call", "call_id": "p", "operation": _PATCH}
PATCH_OUTPUT: Json = {"type": "apply_patch_call_output", "call_id": "p", "status": "completed", "output": "Done."}
_EXEC = {"type": "exec", "command": ["ls"], "env": {}}
LOCAL_CALL: Json = {"type": "local_shell_call", "call_id": "l", "action": _EXEC}
LOCAL_OUTPUT: Json = {"type": "local_shell_call_output", "call_id": "l", "output": "a"}
ADDED: Json = {"type": "additional_tools", "role": "developer", "tools": [FUNCTION, SEARCH]}
TRIGGER: Json = {"type": "compaction_trigger"}
SAID: Json = {"role": "user", "content": "Hi"}


def png() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (30, 20), (200, 30, 30)).save(file, "PNG")
    return file.getvalue()


def data_url(data: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def png_of(width: int, height: int) -> bytes:
    """A small file that says that it is large."""
    return PNG[:16] + struct.pack(">II", width, height) + PNG[24:]


PNG = png()
IMAGE: Json = {"type": "input_image", "image_url": data_url(PNG)}


def put(sent: Any, field: str, value: Any) -> Json:
    """What is sent, with another value of the field, as in "container.type"."""
    name, _, rest = field.partition(".")
    return {**sent, name: put(sent.get(name, {}), rest, value) if rest else value}


def faults(around: Callable[[Any], Json], where: str, rows: Iterable[Fault]) -> list[Case]:
    cases: list[Case] = []
    for sent, code, fields in rows:
        bad = {fields: sent} if isinstance(fields, str) else {name: put(sent, name, fields[name]) for name in fields}
        cases += [(around(each), code, ".".join(filter(None, (where, field)))) for field, each in bad.items()]
    return cases


def within(field: str, rows: Iterable[Fault]) -> list[Case]:
    """Faults of the only element of this list of the body."""
    return faults(lambda sent: {field: [sent]}, f"{field}[0]", rows)


def said(rows: Iterable[Fault], role: str = "user") -> list[Case]:
    """Faults of the only part of a message."""
    return faults(lambda sent: {"input": [{"role": role, "content": [sent]}]}, "input[0].content[0]", rows)


def allowed(*tools: Json) -> Json:
    return {"type": "allowed_tools", "mode": "auto", "tools": list(tools)}


def chosen(tools: list[Json], rows: Iterable[Fault]) -> list[Case]:
    """Faults of a choice of one of these tools."""
    return faults(lambda sent: {"tools": tools, "tool_choice": sent}, "tool_choice", rows)


RANGES = [
    ("temperature", 2, 2.01, "decimal_above_max_value"),
    ("temperature", 0, -0.1, "decimal_below_min_value"),
    ("top_p", 1, 1.5, "decimal_above_max_value"),
    ("top_p", 0, -0.1, "decimal_below_min_value"),
    ("presence_penalty", -2, -2.5, "decimal_below_min_value"),
    ("frequency_penalty", 2, 3, "decimal_above_max_value"),
    ("max_output_tokens", 1, 0, "integer_below_min_value"),
    ("max_output_tokens", 2**31 - 1, 2**31, "integer_above_max_value"),
    ("top_k", -1, -2, "integer_below_min_value"),
    ("min_p", 1, 1.1, "decimal_above_max_value"),
    ("repetition_penalty", 0.5, 0, "decimal_below_min_value"),
    ("seed", -(2**63), 2**63, "integer_above_max_value"),
    ("min_tokens", 0, -1, "integer_below_min_value"),
    ("top_logprobs", 20, 21, "integer_above_max_value"),
    ("max_tool_calls", 1, 0, "integer_below_min_value"),
    ("thinking_token_budget", 0, -1, "integer_below_min_value"),
    ("priority", -5, 2**31, "integer_above_max_value"),
    ("queue_timeout", 0.5, 0, "decimal_below_min_value"),
    ("run_timeout", 60, -1, "decimal_below_min_value"),
]
"""Fields, what is just in their range, what is just beyond, and the code of that."""

WRONG_TYPES = [
    ("temperature", "0.5", "a number", "a string"),
    ("temperature", True, "a number", "a boolean"),
    ("max_output_tokens", 1.5, "an integer", "a decimal number"),
    ("max_output_tokens", 10**30, "an integer", "a decimal number"),
    ("seed", "1", "an integer", "a string"),
    ("ignore_eos", 1, "a boolean", "an integer"),
    ("background", 1, "a boolean", "an integer"),
    ("instructions", ["x"], "a string", "an array"),
    ("metadata", [], "an object", "an array"),
    ("model", 5, "a string", "an integer"),
    ("text", "text", "an object", "a string"),
    ("tools", {}, "an array", "an object"),
    ("tool_choice", 1, "a string or an object", "an integer"),
    ("conversation", 1, "a string or an object", "an integer"),
    ("stop", 1, "a string or an array", "an integer"),
]
"""Fields, a value, the type that is expected, and that of the value."""

_EFFORTS = {"reasoning_effort": "low", "reasoning": {"effort": "high"}}
_SUMMARIES = {"summary": "auto", "generate_summary": "concise"}
_SUCCESSOR = {"previous_response_id": "resp_0"}
_FORMAT = {"text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}}
_FIELDS: list[Fault] = [
    *(({}, code, {field: bad}) for field, _, bad, code in RANGES),
    *(({}, KIND, {field: value}) for field, value, _, _ in WRONG_TYPES),
    *(({"include": ["reasoning.encrypted_content", name]}, UNSUPPORTED, "include[1]") for name in REFUSED_INCLUDES),
    ({}, UNSUPPORTED, {"prompt": {"id": "pmpt_1"}, "moderation": {"model": "m"}, "reasoning.mode": "pro"}),
    ({}, UNSUPPORTED, {"access_programs.cyber": "daybreak_red", "image.context_compression": "enabled"}),
    ({}, UNSUPPORTED, {"prompt_cache_options.prewarm": True}),
    ({}, VALUE, {"prompt_cache_options.mode": "greedy", "prompt_cache_options.ttl": "1y"}),
    ({}, VALUE, {"background_options.continuation_id": "c", "background_options.completion_window": "24h"}),
    ({}, VALUE, {"background_options.completion_window": "2h"}),
    ({}, "empty_string", {"background_options.continuation_id": ""}),
    ({}, LONG, {"background_options.continuation_id": 513 * "c"}),
    ({}, KIND, {"background_options.continuation_id": 7}),
    ({}, UNKNOWN, {"max_tokens": 5}),
    ({"temperature": 9, "zzz": 1}, "decimal_above_max_value", "temperature"),
    ({"max_output_tokens": 4}, "integer_above_max_value", {"min_tokens": 5}),
    (_SUCCESSOR, EXCLUSIVE, {"conversation": "conv_0"}),
    ({"conversation": "conv_0"}, EXCLUSIVE, _SUCCESSOR),
    ({}, VALUE, {"stream_options.include_obfuscation": True, "stream_options.reasoning_summary_delivery": "soon"}),
    # vLLM's parameters
    ({}, "empty_array", {"stop": [], "allowed_token_ids": []}),
    ({}, "empty_string", {"cache_salt": ""}),
    ({"stop": [""]}, "empty_string", "stop[0]"),
    ({}, MANY, {"stop": ["x"] * 17}),
    ({"stop_token_ids": [1, "2"]}, KIND, "stop_token_ids[1]"),
    ({"bad_words": ["a", 1]}, KIND, "bad_words[1]"),
    ({}, VALUE, {"logit_bias.a": 1, "logit_bias.-1": 1}),
    ({}, "decimal_above_max_value", {"logit_bias.5": 101, "run_timeout": 10**10}),
    ({"chat_template_kwargs": {"a": 1}}, VALUE, {"chat_template_kwargs.chat_template": "x"}),
    # metadata
    ({}, LONG, {"metadata.a": "v" * 513}),
    ({}, KIND, {"metadata.a": 1, "client_metadata.a": 1}),
    ({"metadata": {"a b": None}}, KIND, "metadata['a b']"),
    ({}, "object_above_max_size", {"client_metadata": {"a": "é" * (MAX_OPAQUE_BYTES // 2)}}),
    ({}, MANY, {"context_management": [{"type": "compaction"}] * 2}),
    # text and reasoning
    ({}, UNKNOWN, {"text.shape": 1}),
    ({}, VALUE, {"text.verbosity": "loud", "text.format.type": "xml"}),
    ({}, KIND, {"text.format": "json"}),
    ({"text": {"format": {"type": "json_schema", "schema": SCHEMA}}}, MISSING, "text.format.name"),
    ({"text": {"format": {"type": "json_schema", "name": "n"}}}, MISSING, "text.format.schema"),
    (_FORMAT, "empty_object", {"text.format.schema": {}}),
    (_FORMAT, KIND, {"text.format.schema": []}),
    (_FORMAT, VALUE, {"text.format.name": "a b"}),
    (_FORMAT, "invalid_json_schema", {"text.format.schema": {"type": "array"}}),
    ({}, VALUE, {"reasoning.effort": "huge", "reasoning_effort": "huge", "service_tier": "hyper"}),
    ({}, VALUE, {"reasoning.summary": "long", "reasoning.generate_summary": "long", "reasoning.context": "last_turn"}),
    (_EFFORTS, EXCLUSIVE, "reasoning_effort"),
    ({"reasoning": _SUMMARIES}, EXCLUSIVE, "reasoning.generate_summary"),
    # harmony's messages
    ({"previous_input_messages": [{}]}, EXCLUSIVE, _SUCCESSOR),
    ({"previous_input_messages": ["x"]}, KIND, "previous_input_messages[0]"),
    ({}, "empty_array", {"previous_input_messages": []}),
]

_MANAGEMENT: list[Fault] = [
    ({"type": "compaction"}, "integer_below_min_value", {"compact_threshold": 999}),
    ({"type": "compaction"}, KIND, {"compact_threshold": "many"}),
    ({"type": "compaction"}, UNKNOWN, {"keep": 1}),
    ({}, VALUE, {"type": "forget"}),
    ({"compact_threshold": 1000}, MISSING, "type"),
]

FIELDS = [*faults(lambda sent: sent, "", _FIELDS), *within("context_management", _MANAGEMENT)]

_SKILL = {"type": "local", "skills": [{"name": "x"}]}
_TOOL: list[Fault] = [
    *(({}, UNSUPPORTED, {"type": kind}) for kind in sorted(UNSUPPORTED_TOOLS)),
    ({}, MISSING, "type"),
    (5, KIND, ""),
    ({}, VALUE, {"type": "telepathy"}),
    ({"type": "function"}, MISSING, "name"),
    (FUNCTION, VALUE, {"name": "a b"}),
    (FUNCTION, LONG, {"name": "a" * 129}),
    (FUNCTION, KIND, {"parameters": "x", "strict": "yes"}),
    (FUNCTION, "invalid_function_parameters", {"parameters": {"type": "string"}}),
    (FUNCTION, UNSUPPORTED, {"defer_loading": True}),
    (CUSTOM, VALUE, {"format.type": "ebnf"}),
    ({**CUSTOM, "format": {"type": "grammar"}}, MISSING, "format.syntax"),
    ({**CUSTOM, "format": {"type": "grammar", "definition": "x"}}, VALUE, {"format.syntax": "gbnf"}),
    # namespaces
    (NAMESPACE, VALUE, {"name": "a b", "tools": [FUNCTION, FUNCTION]}),
    (NAMESPACE, "empty_array", {"tools": []}),
    (NAMESPACE, MANY, {"tools": [FUNCTION] * (MAX_TOOLS + 1)}),
    *(({**NAMESPACE, "tools": [tool]}, UNSUPPORTED, "tools[0].type") for tool in (NAMESPACE, WEB, {"type": "shell"})),
    ({**NAMESPACE, "tools": [{"type": "function"}]}, MISSING, "tools[0].name"),
    ({**NAMESPACE, "tools": [FUNCTION, LATER]}, UNSUPPORTED, "tools[1].defer_loading"),
    # search for tools, and local tools
    ({"type": "tool_search"}, VALUE, {"execution": "cloud"}),
    ({**SEARCH, "execution": "server"}, UNSUPPORTED, "parameters"),
    ({"type": "shell"}, KIND, {"environment": "local"}),
    ({"type": "shell"}, UNSUPPORTED, {"environment.type": "container_auto"}),
    ({"type": "shell"}, VALUE, {"environment.type": "moon"}),
    ({"type": "shell", "environment": _SKILL}, MISSING, "environment.skills[0].description"),
    # hosted tools
    ({"type": "code_interpreter"}, MISSING, "container"),
    (CODE, KIND, {"container": 5}),
    (CODE, VALUE, {"container.type": "own"}),
    (CODE, UNSUPPORTED, {"container": "cntr_1"}),
    (WEB, VALUE, {"search_context_size": "huge", "user_location.type": "exact"}),
    ({**WEB, "filters": {"allowed_domains": ["https://a.example"]}}, VALUE, "filters.allowed_domains[0]"),
    (WEB, KIND, {"filters.blocked_domains": "a.example", "user_location.city": 5}),
    (WEB, MANY, {"filters.allowed_domains": ["a.example"] * 101}),
    (WEB, UNKNOWN, {"filters.language": "it"}),
    ({"type": "mcp"}, MISSING, "server_label"),
    (MCP, VALUE, {"server_label": "a b", "require_approval": "sometimes", "headers": {"X-A": "a", "x-a": "b"}}),
    (MCP, VALUE, {"headers.Host": "evil.example", "headers.Mcp-Session-Id": "x", "headers.X-A": "a\r\nX-B: b"}),
    ({**MCP, "headers": {"a b": "x"}}, VALUE, "headers['a b']"),
    (MCP, KIND, {"server_url": 5, "require_approval": ["a"], "require_approval.never": ["a"], "allowed_tools": "read"}),
    ({**MCP, "allowed_tools": [5]}, KIND, "allowed_tools[0]"),
    (MCP, UNKNOWN, {"require_approval.maybe": {}}),
    ({**MCP, "headers": {"authorization": "x"}}, EXCLUSIVE, {"authorization": "y"}),
]

_TOGETHER = [
    [FUNCTION, {**CUSTOM, "name": "f"}],
    [{**FUNCTION, "name": "n.f"}, NAMESPACE],
    [{**NAMESPACE, "tools": [{**FUNCTION, "name": "b.f"}]}, {**NAMESPACE, "name": "n.b"}],
    [NAMESPACE, NAMESPACE],
    [SEARCH, {**FUNCTION, "name": "tool_search"}],
    [{"type": "shell"}, {"type": "shell"}],
    [{"type": "shell"}, {**FUNCTION, "name": "run_shell_commands"}],
    [CODE, CODE],
    [WEB, {"type": "web_search_preview"}],
    [MCP, {**MCP, "server_url": DOCS_URL}],
]
"""Tools that cannot be together in one request."""

TOOLS: list[Case] = [*within("tools", _TOOL), *(({"tools": tools}, VALUE, "tools") for tools in _TOGETHER)]

_FUNCTION: Json = {"type": "function"}
_DOCS = {"type": "mcp", "server_label": "docs"}
_CHOICE: list[Fault] = [
    *((_FUNCTION, VALUE, {"name": name}) for name in ("nope", "n", "n.g", "docs")),
    *(({}, VALUE, {"type": kind}) for kind in ("nope", "code_interpreter", "shell", "web_search")),
    ({"type": "custom"}, VALUE, {"name": "f"}),
    (_FUNCTION, MISSING, "name"),
    ({"name": "f"}, MISSING, "type"),
    ("maybe", VALUE, ""),
    (allowed(), "empty_array", "tools"),
    (allowed(CUSTOM), VALUE, {"mode": "all"}),
    (allowed({"type": "function", "name": "g"}), VALUE, "tools[0].name"),
    (allowed({"type": "file_search"}), UNSUPPORTED, "tools[0].type"),
    (allowed(CUSTOM, WEB), VALUE, "tools[1].type"),
    ({"type": "mcp"}, VALUE, {"server_label": "wiki"}),
    ({**_DOCS, "name": "write"}, VALUE, "server_label"),
]

CHOICES: list[Case] = [
    *chosen([FUNCTION], [({}, UNSUPPORTED, {"type": kind}) for kind in sorted(UNSUPPORTED_CHOICES)]),
    *chosen([FUNCTION, CUSTOM, NAMESPACE, {**MCP, "allowed_tools": ["read"]}], _CHOICE),
    ({"tools": [SEARCH], "tool_choice": {"type": "tool_search"}}, UNSUPPORTED, "tool_choice.type"),
    ({"tool_choice": "required"}, VALUE, "tool_choice"),
]

_IMAGE = {"type": "image", "url": "data:image/png;base64,"}
_LOGS = {"type": "logs", "logs": "2"}
_CELL = {"type": "code_interpreter_call", "id": "ci_1", "status": "completed", "container_id": "cntr_1"}
CODE_CALL: Json = {**_CELL, "code": "1 + 1", "outputs": [_LOGS, _IMAGE]}
_SOURCES = [{"type": "url", "url": "http://x"}]
_SEARCHING = {"type": "search", "query": "x", "queries": ["x"], "sources": _SOURCES}
WEB_CALL: Json = {"type": "web_search_call", "id": "ws_1", "status": "failed", "action": _SEARCHING}
_ASKS = {"type": "mcp_call", "id": "mcp_1", "server_label": "docs", "name": "read", "arguments": "{}"}
_GOT = {"output": "text", "error": None, "approval_request_id": "mcpr_1", "status": "completed"}
MCP_CALL: Json = {**_ASKS, **_GOT}
_READ = {"name": "read", "input_schema": {}, "description": None, "annotations": {"readOnlyHint": True}}
MCP_LIST: Json = {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "docs", "tools": [_READ], "error": None}
_ASKED = {"type": "mcp_approval_response", "id": "mcpa_1", "approval_request_id": "mcpr_1"}
APPROVAL: Json = {**_ASKED, "approve": True, "reason": None}

_THOUGHT = {"type": "reasoning"}
_INTERPRETED = {"type": "open_webui:code_interpreter"}
_ITEM: list[Fault] = [
    *(({"content": "x"}, UNSUPPORTED, {"type": kind}) for kind in sorted(UNSUPPORTED_ITEMS)),
    ("x", KIND, ""),
    ({"role": "user"}, MISSING, "content"),
    ({}, MISSING, "role"),
    ({"content": "x"}, VALUE, {"role": "tool"}),
    ({"content": "x"}, VALUE, {"role": 5}),
    ({}, VALUE, {"type": "telegram"}),
    (SAID, KIND, {"type": None, "content": 7}),
    ({**SAID, "content": ["x"]}, KIND, "content[0]"),
    (SAID, VALUE, {"status": "done"}),
    ({"type": "item_reference"}, MISSING, "id"),
    ({"type": "item_reference"}, MISSING, {"id": ""}),
    ({"type": "compaction"}, MISSING, {"encrypted_content": ""}),
    ({**_THOUGHT, "summary": [{"type": "x", "text": "y"}]}, VALUE, "summary[0].type"),
    ({**_THOUGHT, "content": [{"type": "reasoning_text"}]}, MISSING, "content[0].text"),
    ({**_THOUGHT, "content": [{"type": "input_text", "text": "x"}]}, VALUE, "content[0].type"),
    ({**_INTERPRETED, "output": "2"}, MISSING, "code"),
    ({"text": "x"}, UNSUPPORTED, {"type": "acme:note"}),
    # calls of the client's tools
    (CALL, MISSING, {"name": ""}),
    (CALL, KIND, {"arguments": {}}),
    (CALL, "empty_string", {"call_id": ""}),
    (CALL, LONG, {"namespace": "n" * 257}),
    ({"type": "function_call", "name": "f", "arguments": "{}"}, MISSING, "call_id"),
    ({"type": "function_call_output", "output": "It is nine."}, MISSING, "call_id"),
    ({"type": "custom_tool_call", "call_id": "c", "name": "f"}, MISSING, "input"),
    # tools that load later
    (SEARCHED, KIND, {"arguments": "{}"}),
    (SEARCHED, VALUE, {"execution": "cloud"}),
    ({"type": "tool_search_call", "arguments": {}}, MISSING, "call_id"),
    ({"type": "tool_search_output", "tools": []}, MISSING, "call_id"),
    ({**FOUND, "tools": [WEB]}, UNSUPPORTED, "tools[0].type"),
    (FOUND, MANY, {"tools": [FUNCTION] * (MAX_TOOLS + 1)}),
    (ADDED, VALUE, {"role": "user"}),
    ({**ADDED, "tools": [{"type": "mcp"}]}, UNSUPPORTED, "tools[0].type"),
    ({**ADDED, "tools": [FUNCTION, LATER]}, UNSUPPORTED, "tools[1].defer_loading"),
    # local tools
    (SHELL_CALL, KIND, {"action.commands": "ls"}),
    (SHELL_OUTPUT, KIND, {"output": "text"}),
    ({**SHELL_OUTPUT, "output": [{"stdout": "", "stderr": ""}]}, MISSING, "output[0].outcome"),
    ({**PATCH_CALL, "operation": {"path": "a"}}, VALUE, {"operation.type": "rename_file"}),
    ({**PATCH_CALL, "operation": {"type": "create_file", "path": "a"}}, MISSING, "operation.diff"),
    (PATCH_OUTPUT, VALUE, {"status": "done"}),
    ({**LOCAL_CALL, "action": {"type": "exec", "command": ["ls"]}}, MISSING, "action.env"),
    ({"type": "local_shell_call_output", "output": ""}, MISSING, "call_id"),
    # hosted tools
    ({"type": "code_interpreter_call"}, MISSING, "code"),
    (CODE_CALL, VALUE, {"status": "done"}),
    ({**CODE_CALL, "outputs": [{"type": "file"}]}, VALUE, "outputs[0].type"),
    ({**WEB_CALL, "action": {}}, VALUE, {"action.type": "swim"}),
    ({**WEB_CALL, "action": {"type": "find_in_page"}}, MISSING, "action.pattern"),
    (MCP_CALL, KIND, {"arguments": {}, "error": 5}),
    ({**MCP_LIST, "tools": [{"name": "x"}]}, MISSING, "tools[0].input_schema"),
    (APPROVAL, KIND, {"approve": "yes"}),
    ({"type": "mcp_approval_response", "approve": True}, MISSING, "approval_request_id"),
]

_TEXT = {"type": "input_text", "text": "x"}
_FILE = {"type": "input_file"}
_PART: list[Fault] = [
    *(({"x": 1}, UNSUPPORTED, {"type": kind}) for kind in sorted(UNSUPPORTED_PARTS)),
    ({"text": "x"}, MISSING, "type"),
    *(({"text": "x"}, VALUE, {"type": kind}) for kind in ("text", "output_text")),
    ({"refusal": "x"}, VALUE, {"type": "refusal"}),
    (_TEXT, KIND, {"text": 5}),
    ({"type": "input_image"}, MISSING, "image_url"),
    (IMAGE, VALUE, {"detail": "tiny", "image_url": "file:///etc/passwd"}),
    (IMAGE, KIND, {"file_id": 5}),
    (_FILE, MISSING, "file_id"),
    ({**_FILE, "file_data": "eA=="}, MISSING, "filename"),
    ({**_FILE, "text": "x"}, MISSING, "filename"),
    (_FILE, VALUE, {"file_url": "file:///etc/passwd"}),
    ({**_FILE, "file_id": "f"}, EXCLUSIVE, {"file_url": "https://a.example/a"}),
]

ITEMS: list[Case] = [
    *(
        ({"input": sent}, code, "input")
        for sent, code in ((5, KIND), (None, MISSING), (SAID, KIND), ([], "empty_array"))
    ),
    *within("input", _ITEM),
    ({"input": [CALL, {"type": "function_call_output", "call_id": "call_1"}]}, MISSING, "input[1].output"),
    ({"input": [CALL, {**OUTPUT, "output": 5}]}, KIND, "input[1].output"),
    ({"input": [SAID, TRIGGER, SAID]}, VALUE, "input[1]"),
    ({"input": [TRIGGER]}, VALUE, "input[0]"),
    ({"input": [SAID, SAID, {**SAID, "content": [{"type": "input_text"}]}]}, MISSING, "input[2].content[0].text"),
    ({"input": [{"role": "user", "content": 1}, {"x": 1}]}, KIND, "input[0].content"),
    *said(_PART),
    *said([({"type": "output_text", "text": "x"}, KIND, {"annotations": 1})], "assistant"),
    *said([({"type": "refusal"}, MISSING, "refusal")], "assistant"),
]

_BAD_IMAGES = {
    "unsupported_image_media_type": [
        "data:image/png,hello",
        "data:image/png;base64",
        "data:text/plain;base64,aGVsbG8=",
        "data:image/svg+xml;base64,PHN2Zy8+",
    ],
    "invalid_base64_image": [f"data:image/png;base64,{data}" for data in ("not base64", "aGk", "a=k=", "äaaa")],
    "invalid_image": [
        "data:image/png;base64,",
        *map(data_url, (b"BM" + bytes(60), PNG[:20], b"RIFF....WAVEfmt ", b"\xff\xd8\xff\xe0" + bytes(50))),
        data_url(png_of(0, 7)),
    ],
    "image_too_large": [data_url(png_of(MAX_PIXELS, 2)), data_url(png_of(2**31, 2**31))],
}
IMAGES = said((IMAGE, code, {"image_url": url}) for code, urls in _BAD_IMAGES.items() for url in urls)

_NOTED = {"role": "assistant", "content": [{**_TEXT, "annotations": [{}] * (MAX_NOTES + 1)}]}

BOUNDS: list[Case] = [
    ({"input": [SAID] * (MAX_ITEMS + 1)}, MANY, "input"),
    ({"input": [SAID, {**SAID, "content": [_TEXT] * (MAX_PARTS + 1)}]}, MANY, "input[1].content"),
    ({"input": [_NOTED]}, MANY, "input[0].content[0].annotations"),
    ({"tools": [{**FUNCTION, "name": f"f{number}"} for number in range(MAX_TOOLS + 1)]}, MANY, "tools"),
    ({"include": ["reasoning.encrypted_content"] * (MAX_INCLUDED + 1)}, MANY, "include"),
    ({"model": "m" * 257}, LONG, "model"),
    ({"metadata": {f"k{number}": "" for number in range(17)}}, "object_above_max_length", "metadata"),
]

NUL: list[Case] = [
    ({"model": "m\0"}, VALUE, "model"),
    ({"in\0put": "x"}, VALUE, "['in\\x00put']"),
    ({"previous_response_id": "resp_\0"}, VALUE, "previous_response_id"),
    ({"conversation": {"id": "conv_\0"}}, VALUE, "conversation.id"),
    ({"prompt_cache_key": "\0"}, VALUE, "prompt_cache_key"),
    ({"input": [{**SAID, "id": "msg_\0"}]}, VALUE, "input[0].id"),
    ({"input": [{"type": "item_reference", "id": "msg_\0"}]}, VALUE, "input[0].id"),
    ({"input": [{**CALL, "call_id": "\0"}]}, VALUE, "input[0].call_id"),
    ({"input": [CALL, {**OUTPUT, "call_id": "\0"}]}, VALUE, "input[1].call_id"),
    *said([({"type": "input_image"}, VALUE, {"image_url": "https://x.test/\0"})]),
    ({"metadata": {"a": "\0"}}, VALUE, "metadata.a"),
    ({"metadata": {"a\0": "b"}}, VALUE, "metadata['a\\x00']"),
]
"""The character U+0000 in names and settings."""

CASES = [*FIELDS, *TOOLS, *CHOICES, *ITEMS, *IMAGES, *BOUNDS, *NUL]
