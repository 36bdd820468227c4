"""Requests that are refused, each for one fault: what is sent beside a model and an input, the code, the field named.

The unit test gives them to the models (tests/unit/protocol/requests/test_refusals.py), one test of the API to the
route (tests/integration/api/test_refusals.py).
"""

from __future__ import annotations

import base64
import io
import struct
from collections.abc import Iterable
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
Fault = tuple[Any, str, str]
"""The same of one tool, item, part or choice; the field as one reads it behind that."""

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
SHELL_OUTPUT: Json = {
    "type": "shell_call_output",
    "call_id": "c",
    "output": [{"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
}
PATCH_CALL: Json = {
    "type": "apply_patch_call",
    "call_id": "p",
    "operation": {"type": "create_file", "path": "a.py", "diff": "+x"},
}
PATCH_OUTPUT: Json = {"type": "apply_patch_call_output", "call_id": "p", "status": "completed", "output": "Done."}
LOCAL_CALL: Json = {
    "type": "local_shell_call",
    "call_id": "l",
    "action": {"type": "exec", "command": ["ls"], "env": {}},
}
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


def within(field: str, faults: Iterable[Fault]) -> list[Case]:
    """Faults of the only element of this list of the body."""
    return [({field: [sent]}, code, f"{field}[0]{path}") for sent, code, path in faults]


def said(faults: Iterable[Fault], role: str = "user") -> list[Case]:
    """Faults of the only part of a message."""
    where = "input[0].content[0]"
    return [({"input": [{"role": role, "content": [sent]}]}, code, f"{where}{path}") for sent, code, path in faults]


def allowed(*tools: Json) -> Json:
    return {"type": "allowed_tools", "mode": "auto", "tools": list(tools)}


def chosen(tools: list[Json], faults: Iterable[Fault]) -> list[Case]:
    """Faults of a choice of one of these tools."""
    return [({"tools": tools, "tool_choice": sent}, code, f"tool_choice{path}") for sent, code, path in faults]


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

WINDOW = {"background_options": {"completion_window": "2h"}}

FIELDS: list[Case] = [
    *(({field: bad}, code, field) for field, _, bad, code in RANGES),
    *(({field: value}, KIND, field) for field, value, _, _ in WRONG_TYPES),
    ({"reasoning": {"mode": "pro"}}, UNSUPPORTED, "reasoning.mode"),
    ({"prompt": {"id": "pmpt_1"}}, UNSUPPORTED, "prompt"),
    ({"moderation": {"model": "m"}}, UNSUPPORTED, "moderation"),
    ({"access_programs": {"cyber": "daybreak_red"}}, UNSUPPORTED, "access_programs.cyber"),
    ({"image": {"context_compression": "enabled"}}, UNSUPPORTED, "image.context_compression"),
    ({"prompt_cache_options": {"mode": "greedy"}}, VALUE, "prompt_cache_options.mode"),
    ({"prompt_cache_options": {"ttl": "1y"}}, VALUE, "prompt_cache_options.ttl"),
    ({"prompt_cache_options": {"prewarm": True}}, UNSUPPORTED, "prompt_cache_options.prewarm"),
    ({"background_options": {"continuation_id": "c"}}, VALUE, "background_options.continuation_id"),
    ({"background_options": {"continuation_id": ""}}, "empty_string", "background_options.continuation_id"),
    ({"background_options": {"continuation_id": 513 * "c"}}, LONG, "background_options.continuation_id"),
    ({"background_options": {"continuation_id": 7}}, KIND, "background_options.continuation_id"),
    ({"background_options": {"completion_window": "24h"}}, VALUE, "background_options.completion_window"),
    *(({"include": ["reasoning.encrypted_content", value]}, UNSUPPORTED, "include[1]") for value in REFUSED_INCLUDES),
    ({"max_tokens": 5}, UNKNOWN, "max_tokens"),
    ({"zzz": 1, "temperature": 9}, UNKNOWN, "zzz"),
    ({"temperature": 9, "zzz": 1}, "decimal_above_max_value", "temperature"),
    ({"min_tokens": 5, "max_output_tokens": 4}, "integer_above_max_value", "min_tokens"),
    ({"previous_response_id": "resp_0", "conversation": "conv_0"}, EXCLUSIVE, "conversation"),
    ({"conversation": "conv_0", "previous_response_id": "resp_0"}, EXCLUSIVE, "previous_response_id"),
    ({"stream_options": {"include_obfuscation": True}}, VALUE, "stream_options.include_obfuscation"),
    (WINDOW, VALUE, "background_options.completion_window"),
    # vLLM's parameters
    ({"stop": []}, "empty_array", "stop"),
    ({"stop": [""]}, "empty_string", "stop[0]"),
    ({"stop": ["x"] * 17}, MANY, "stop"),
    ({"stop_token_ids": [1, "2"]}, KIND, "stop_token_ids[1]"),
    ({"allowed_token_ids": []}, "empty_array", "allowed_token_ids"),
    ({"bad_words": ["a", 1]}, KIND, "bad_words[1]"),
    ({"logit_bias": {"a": 1}}, VALUE, "logit_bias.a"),
    ({"logit_bias": {"-1": 1}}, VALUE, "logit_bias.-1"),
    ({"logit_bias": {"5": 101}}, "decimal_above_max_value", "logit_bias.5"),
    ({"cache_salt": ""}, "empty_string", "cache_salt"),
    ({"chat_template_kwargs": {"a": 1, "chat_template": "x"}}, VALUE, "chat_template_kwargs.chat_template"),
    ({"run_timeout": 10**10}, "decimal_above_max_value", "run_timeout"),
    # metadata
    ({"metadata": {"a": "v" * 513}}, LONG, "metadata.a"),
    ({"metadata": {"a": 1}}, KIND, "metadata.a"),
    ({"metadata": {"a b": None}}, KIND, "metadata['a b']"),
    ({"client_metadata": {"a": 1}}, KIND, "client_metadata.a"),
    ({"client_metadata": {"a": "é" * (MAX_OPAQUE_BYTES // 2)}}, "object_above_max_size", "client_metadata"),
    # context_management
    *within(
        "context_management",
        [
            ({"type": "compaction", "compact_threshold": 999}, "integer_below_min_value", ".compact_threshold"),
            ({"type": "compaction", "compact_threshold": "many"}, KIND, ".compact_threshold"),
            ({"type": "compaction", "keep": 1}, UNKNOWN, ".keep"),
            ({"type": "forget"}, VALUE, ".type"),
            ({"compact_threshold": 1000}, MISSING, ".type"),
        ],
    ),
    ({"context_management": [{"type": "compaction"}] * 2}, MANY, "context_management"),
    # text and reasoning
    ({"text": {"shape": 1}}, UNKNOWN, "text.shape"),
    ({"text": {"verbosity": "loud"}}, VALUE, "text.verbosity"),
    ({"text": {"format": "json"}}, KIND, "text.format"),
    ({"text": {"format": {"type": "xml"}}}, VALUE, "text.format.type"),
    ({"text": {"format": {"type": "json_schema", "schema": SCHEMA}}}, MISSING, "text.format.name"),
    ({"text": {"format": {"type": "json_schema", "name": "n"}}}, MISSING, "text.format.schema"),
    ({"text": {"format": {"type": "json_schema", "name": "n", "schema": {}}}}, "empty_object", "text.format.schema"),
    ({"text": {"format": {"type": "json_schema", "name": "n", "schema": []}}}, KIND, "text.format.schema"),
    ({"text": {"format": {"type": "json_schema", "name": "a b", "schema": SCHEMA}}}, VALUE, "text.format.name"),
    (
        {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "array"}}}},
        "invalid_json_schema",
        "text.format.schema",
    ),
    ({"reasoning": {"effort": "huge"}}, VALUE, "reasoning.effort"),
    ({"reasoning_effort": "huge"}, VALUE, "reasoning_effort"),
    ({"reasoning_effort": "low", "reasoning": {"effort": "high"}}, EXCLUSIVE, "reasoning_effort"),
    ({"stream_options": {"reasoning_summary_delivery": "soon"}}, VALUE, "stream_options.reasoning_summary_delivery"),
    ({"service_tier": "hyper"}, VALUE, "service_tier"),
    ({"reasoning": {"summary": "long"}}, VALUE, "reasoning.summary"),
    ({"reasoning": {"generate_summary": "long"}}, VALUE, "reasoning.generate_summary"),
    ({"reasoning": {"context": "last_turn"}}, VALUE, "reasoning.context"),
    ({"reasoning": {"summary": "auto", "generate_summary": "concise"}}, EXCLUSIVE, "reasoning.generate_summary"),
    # harmony's messages
    ({"previous_input_messages": [{}], "previous_response_id": "resp_0"}, EXCLUSIVE, "previous_response_id"),
    ({"previous_input_messages": ["x"]}, KIND, "previous_input_messages[0]"),
    ({"previous_input_messages": []}, "empty_array", "previous_input_messages"),
]

TOOLS: list[Case] = [
    *within("tools", [({"type": kind}, UNSUPPORTED, ".type") for kind in sorted(UNSUPPORTED_TOOLS)]),
    *within(
        "tools",
        [
            ({}, MISSING, ".type"),
            (5, KIND, ""),
            ({"type": "telepathy"}, VALUE, ".type"),
            ({"type": "function"}, MISSING, ".name"),
            ({**FUNCTION, "name": "a b"}, VALUE, ".name"),
            ({**FUNCTION, "name": "a" * 129}, LONG, ".name"),
            ({**FUNCTION, "parameters": "x"}, KIND, ".parameters"),
            ({**FUNCTION, "parameters": {"type": "string"}}, "invalid_function_parameters", ".parameters"),
            ({**FUNCTION, "strict": "yes"}, KIND, ".strict"),
            ({**FUNCTION, "async": True}, UNSUPPORTED, ".async"),
            ({**FUNCTION, "output_schema": "x"}, KIND, ".output_schema"),
            ({**FUNCTION, "allowed_callers": ["programmatic"]}, UNSUPPORTED, ".allowed_callers"),
            ({**FUNCTION, "function": {}}, UNKNOWN, ".function"),
            ({**CUSTOM, "format": {"type": "ebnf"}}, VALUE, ".format.type"),
            ({**CUSTOM, "format": {"type": "grammar"}}, MISSING, ".format.syntax"),
            ({**CUSTOM, "format": {"type": "grammar", "syntax": "gbnf", "definition": "x"}}, VALUE, ".format.syntax"),
            # namespaces
            ({**NAMESPACE, "name": "a b"}, VALUE, ".name"),
            ({**NAMESPACE, "tools": []}, "empty_array", ".tools"),
            ({**NAMESPACE, "tools": [NAMESPACE]}, UNSUPPORTED, ".tools[0].type"),
            ({**NAMESPACE, "tools": [WEB]}, UNSUPPORTED, ".tools[0].type"),
            ({**NAMESPACE, "tools": [{"type": "function"}]}, MISSING, ".tools[0].name"),
            ({**NAMESPACE, "tools": [FUNCTION] * (MAX_TOOLS + 1)}, MANY, ".tools"),
            ({**NAMESPACE, "tools": [FUNCTION, FUNCTION]}, VALUE, ".tools"),
            # tools that load later
            (LATER, UNSUPPORTED, ".defer_loading"),
            ({**NAMESPACE, "tools": [FUNCTION, LATER]}, UNSUPPORTED, ".tools[1].defer_loading"),
            ({"type": "tool_search", "execution": "cloud"}, VALUE, ".execution"),
            ({**SEARCH, "execution": "server"}, UNSUPPORTED, ".parameters"),
            # local tools
            ({"type": "shell", "environment": "local"}, KIND, ".environment"),
            ({"type": "shell", "environment": {"type": "container_auto"}}, UNSUPPORTED, ".environment.type"),
            ({"type": "shell", "environment": {"type": "moon"}}, VALUE, ".environment.type"),
            (
                {"type": "shell", "environment": {"type": "local", "skills": [{"name": "x"}]}},
                MISSING,
                ".environment.skills[0].description",
            ),
            ({"type": "apply_patch", "allowed_callers": ["programmatic"]}, UNSUPPORTED, ".allowed_callers"),
            ({"type": "local_shell", "name": "sh"}, UNKNOWN, ".name"),
            ({**NAMESPACE, "tools": [{"type": "shell"}]}, UNSUPPORTED, ".tools[0].type"),
            # hosted tools
            ({"type": "code_interpreter"}, MISSING, ".container"),
            ({**CODE, "container": "cntr_1"}, UNSUPPORTED, ".container"),
            ({**CODE, "container": 5}, KIND, ".container"),
            ({**CODE, "container": {"type": "own"}}, VALUE, ".container.type"),
            ({**CODE, "container": {"type": "auto", "file_ids": ["f"]}}, UNSUPPORTED, ".container.file_ids"),
            ({**CODE, "container": {"type": "auto", "memory_limit": "4g"}}, UNSUPPORTED, ".container.memory_limit"),
            ({**CODE, "container": {"type": "auto", "network_policy": {}}}, UNSUPPORTED, ".container.network_policy"),
            ({**CODE, "allowed_callers": ["programmatic"]}, UNSUPPORTED, ".allowed_callers"),
            ({**WEB, "search_context_size": "huge"}, VALUE, ".search_context_size"),
            ({**WEB, "filters": {"allowed_domains": ["https://a.example"]}}, VALUE, ".filters.allowed_domains[0]"),
            ({**WEB, "filters": {"blocked_domains": "a.example"}}, KIND, ".filters.blocked_domains"),
            ({**WEB, "filters": {"allowed_domains": ["a.example"] * 101}}, MANY, ".filters.allowed_domains"),
            ({**WEB, "filters": {"language": "it"}}, UNKNOWN, ".filters.language"),
            ({**WEB, "user_location": {"type": "exact"}}, VALUE, ".user_location.type"),
            ({**WEB, "user_location": {"city": 5}}, KIND, ".user_location.city"),
            ({**WEB, "indexed_web_access": "yes"}, UNSUPPORTED, ".indexed_web_access"),
            ({**WEB, "search_content_types": ["image"]}, UNSUPPORTED, ".search_content_types"),
            ({"type": "web_search_preview", "filters": {}}, UNKNOWN, ".filters"),
            ({"type": "mcp"}, MISSING, ".server_label"),
            ({**MCP, "server_label": "a b"}, VALUE, ".server_label"),
            ({**MCP, "server_url": 5}, KIND, ".server_url"),
            ({**MCP, "connector_id": "connector_gmail"}, UNSUPPORTED, ".connector_id"),
            ({**MCP, "tunnel_id": "t"}, UNSUPPORTED, ".tunnel_id"),
            ({**MCP, "defer_loading": True}, UNSUPPORTED, ".defer_loading"),
            ({**MCP, "require_approval": "sometimes"}, VALUE, ".require_approval"),
            ({**MCP, "require_approval": ["a"]}, KIND, ".require_approval"),
            ({**MCP, "require_approval": {"maybe": {}}}, UNKNOWN, ".require_approval.maybe"),
            ({**MCP, "require_approval": {"never": ["a"]}}, KIND, ".require_approval.never"),
            ({**MCP, "allowed_tools": "read"}, KIND, ".allowed_tools"),
            ({**MCP, "allowed_tools": [5]}, KIND, ".allowed_tools[0]"),
            ({**MCP, "headers": {"a b": "x"}}, VALUE, ".headers['a b']"),
            ({**MCP, "headers": {"Host": "evil.example"}}, VALUE, ".headers.Host"),
            ({**MCP, "headers": {"Mcp-Session-Id": "x"}}, VALUE, ".headers.Mcp-Session-Id"),
            ({**MCP, "headers": {"X-A": "a\r\nX-B: b"}}, VALUE, ".headers.X-A"),
            ({**MCP, "headers": {"X-A": "a", "x-a": "b"}}, VALUE, ".headers"),
            ({**MCP, "headers": {"authorization": "x"}, "authorization": "y"}, EXCLUSIVE, ".authorization"),
        ],
    ),
    ({"tools": [FUNCTION, {**CUSTOM, "name": "f"}]}, VALUE, "tools"),
    ({"tools": [{**FUNCTION, "name": "n.f"}, NAMESPACE]}, VALUE, "tools"),
    (
        {"tools": [{**NAMESPACE, "tools": [{**FUNCTION, "name": "b.f"}]}, {**NAMESPACE, "name": "n.b"}]},
        VALUE,
        "tools",
    ),
    ({"tools": [NAMESPACE, NAMESPACE]}, VALUE, "tools"),
    ({"tools": [SEARCH, {**FUNCTION, "name": "tool_search"}]}, VALUE, "tools"),
    ({"tools": [{"type": "shell"}, {"type": "shell"}]}, VALUE, "tools"),
    ({"tools": [{"type": "shell"}, {**FUNCTION, "name": "run_shell_commands"}]}, VALUE, "tools"),
    ({"tools": [CODE, CODE]}, VALUE, "tools"),
    ({"tools": [WEB, {"type": "web_search_preview"}]}, VALUE, "tools"),
    ({"tools": [MCP, {**MCP, "server_url": DOCS_URL}]}, VALUE, "tools"),
]

CHOICES: list[Case] = [
    *chosen([FUNCTION], [({"type": kind}, UNSUPPORTED, ".type") for kind in sorted(UNSUPPORTED_CHOICES)]),
    *chosen(
        [FUNCTION, CUSTOM, NAMESPACE, {**MCP, "allowed_tools": ["read"]}],
        [
            ({"type": "function", "name": "nope"}, VALUE, ".name"),
            ({"type": "function", "name": "n"}, VALUE, ".name"),
            ({"type": "function", "name": "n.g"}, VALUE, ".name"),
            ({"type": "function", "name": "docs"}, VALUE, ".name"),
            ({"type": "custom", "name": "f"}, VALUE, ".name"),
            ({"type": "function"}, MISSING, ".name"),
            ({"name": "f"}, MISSING, ".type"),
            ({"type": "nope"}, VALUE, ".type"),
            ("maybe", VALUE, ""),
            (allowed(), "empty_array", ".tools"),
            ({**allowed(CUSTOM), "mode": "all"}, VALUE, ".mode"),
            (allowed({"type": "function", "name": "g"}), VALUE, ".tools[0].name"),
            (allowed({"type": "file_search"}), UNSUPPORTED, ".tools[0].type"),
            (allowed(CUSTOM, WEB), VALUE, ".tools[1].type"),
            ({"type": "code_interpreter"}, VALUE, ".type"),
            ({"type": "shell"}, VALUE, ".type"),
            ({"type": "web_search"}, VALUE, ".type"),
            ({"type": "mcp", "server_label": "wiki"}, VALUE, ".server_label"),
            ({"type": "mcp", "server_label": "docs", "name": "write"}, VALUE, ".server_label"),
        ],
    ),
    ({"tools": [SEARCH], "tool_choice": {"type": "tool_search"}}, UNSUPPORTED, "tool_choice.type"),
    ({"tool_choice": "required"}, VALUE, "tool_choice"),
]

METADATA = "internal_chat_message_metadata_passthrough"
CODE_CALL: Json = {
    "type": "code_interpreter_call",
    "id": "ci_1",
    "code": "1 + 1",
    "container_id": "cntr_1",
    "outputs": [{"type": "logs", "logs": "2"}, {"type": "image", "url": "data:image/png;base64,"}],
    "status": "completed",
}
WEB_CALL: Json = {
    "type": "web_search_call",
    "id": "ws_1",
    "status": "failed",
    "action": {"type": "search", "query": "x", "queries": ["x"], "sources": [{"type": "url", "url": "http://x"}]},
}
MCP_CALL: Json = {
    "type": "mcp_call",
    "id": "mcp_1",
    "server_label": "docs",
    "name": "read",
    "arguments": "{}",
    "output": "text",
    "error": None,
    "approval_request_id": "mcpr_1",
    "status": "completed",
}
MCP_LIST: Json = {
    "type": "mcp_list_tools",
    "id": "mcpl_1",
    "server_label": "docs",
    "tools": [{"name": "read", "input_schema": {}, "description": None, "annotations": {"readOnlyHint": True}}],
    "error": None,
}
APPROVAL: Json = {
    "type": "mcp_approval_response",
    "id": "mcpa_1",
    "approval_request_id": "mcpr_1",
    "approve": True,
    "reason": None,
}

ITEMS: list[Case] = [
    ({"input": 5}, KIND, "input"),
    ({"input": None}, MISSING, "input"),
    ({"input": SAID}, KIND, "input"),
    ({"input": []}, "empty_array", "input"),
    *within("input", [({"type": kind, "content": "x"}, UNSUPPORTED, ".type") for kind in sorted(UNSUPPORTED_ITEMS)]),
    *within(
        "input",
        [
            ("x", KIND, ""),
            ({"role": "user"}, MISSING, ".content"),
            ({}, MISSING, ".role"),
            ({"role": "tool", "content": "x"}, VALUE, ".role"),
            ({"role": 5, "content": "x"}, VALUE, ".role"),
            ({"type": "telegram"}, VALUE, ".type"),
            ({**SAID, "type": None}, KIND, ".type"),
            ({**SAID, "content": 7}, KIND, ".content"),
            ({**SAID, "content": ["x"]}, KIND, ".content[0]"),
            ({**SAID, "name": "me"}, UNKNOWN, ".name"),
            ({**SAID, "phase": "commentary"}, VALUE, ".phase"),
            ({**SAID, "status": "done"}, VALUE, ".status"),
            ({**SAID, METADATA: "x"}, KIND, f".{METADATA}"),
            ({**SAID, METADATA: {"x": "y" * MAX_OPAQUE_BYTES}}, "object_above_max_size", f".{METADATA}"),
            ({"type": "item_reference"}, MISSING, ".id"),
            ({"type": "item_reference", "id": ""}, MISSING, ".id"),
            ({"type": "item_reference", "id": "x", "y": 1}, UNKNOWN, ".y"),
            ({"type": "compaction", "encrypted_content": ""}, MISSING, ".encrypted_content"),
            ({"type": "reasoning", "summary": [{"type": "x", "text": "y"}]}, VALUE, ".summary[0].type"),
            ({"type": "reasoning", "content": [{"type": "reasoning_text"}]}, MISSING, ".content[0].text"),
            ({"type": "reasoning", "content": [{"type": "input_text", "text": "x"}]}, VALUE, ".content[0].type"),
            ({"type": "open_webui:code_interpreter", "output": "2"}, MISSING, ".code"),
            ({"type": "open_webui:code_interpreter", "code": "1", "colour": 1}, UNKNOWN, ".colour"),
            ({"type": "acme:note", "text": "x"}, UNSUPPORTED, ".type"),
            # calls of the client's tools
            ({**CALL, "name": ""}, MISSING, ".name"),
            ({**CALL, "arguments": {}}, KIND, ".arguments"),
            ({**CALL, "call_id": ""}, "empty_string", ".call_id"),
            ({**CALL, "namespace": "n" * 257}, LONG, ".namespace"),
            ({**CALL, "async": True}, UNSUPPORTED, ".async"),
            ({"type": "function_call", "name": "f", "arguments": "{}"}, MISSING, ".call_id"),
            ({"type": "function_call_output", "output": "It is nine."}, MISSING, ".call_id"),
            ({"type": "custom_tool_call", "call_id": "c", "name": "f"}, MISSING, ".input"),
            # tools that load later
            ({**SEARCHED, "arguments": "{}"}, KIND, ".arguments"),
            ({"type": "tool_search_call", "arguments": {}}, MISSING, ".call_id"),
            ({**SEARCHED, "execution": "cloud"}, VALUE, ".execution"),
            ({"type": "tool_search_output", "tools": []}, MISSING, ".call_id"),
            ({**FOUND, "tools": [WEB]}, UNSUPPORTED, ".tools[0].type"),
            ({**FOUND, "tools": [FUNCTION] * (MAX_TOOLS + 1)}, MANY, ".tools"),
            ({**ADDED, "role": "user"}, VALUE, ".role"),
            ({**ADDED, "tools": [{"type": "mcp"}]}, UNSUPPORTED, ".tools[0].type"),
            ({**ADDED, "tools": [FUNCTION, LATER]}, UNSUPPORTED, ".tools[1].defer_loading"),
            # local tools
            ({**SHELL_CALL, "action": {"commands": "ls"}}, KIND, ".action.commands"),
            ({**SHELL_CALL, "environment": {"type": "container_reference"}}, UNSUPPORTED, ".environment.type"),
            ({**SHELL_OUTPUT, "output": "text"}, KIND, ".output"),
            ({**SHELL_OUTPUT, "output": [{"stdout": "", "stderr": ""}]}, MISSING, ".output[0].outcome"),
            ({**PATCH_CALL, "operation": {"type": "rename_file", "path": "a"}}, VALUE, ".operation.type"),
            ({**PATCH_CALL, "operation": {"type": "create_file", "path": "a"}}, MISSING, ".operation.diff"),
            ({**PATCH_OUTPUT, "status": "done"}, VALUE, ".status"),
            ({**LOCAL_CALL, "action": {"type": "exec", "command": ["ls"]}}, MISSING, ".action.env"),
            ({"type": "local_shell_call_output", "output": ""}, MISSING, ".call_id"),
            # hosted tools
            ({"type": "code_interpreter_call"}, MISSING, ".code"),
            ({**CODE_CALL, "status": "searching"}, VALUE, ".status"),
            ({**CODE_CALL, "outputs": [{"type": "file"}]}, VALUE, ".outputs[0].type"),
            ({**CODE_CALL, "call": {}}, UNKNOWN, ".call"),
            ({**WEB_CALL, "action": {"type": "swim"}}, VALUE, ".action.type"),
            ({**WEB_CALL, "action": {"type": "find_in_page"}}, MISSING, ".action.pattern"),
            ({**MCP_CALL, "arguments": {}}, KIND, ".arguments"),
            ({**MCP_CALL, "error": 5}, KIND, ".error"),
            ({**MCP_LIST, "tools": [{"name": "x"}]}, MISSING, ".tools[0].input_schema"),
            ({**MCP_LIST, "status": "completed"}, UNKNOWN, ".status"),
            ({**APPROVAL, "approve": "yes"}, KIND, ".approve"),
            ({"type": "mcp_approval_response", "approve": True}, MISSING, ".approval_request_id"),
        ],
    ),
    ({"input": [CALL, {"type": "function_call_output", "call_id": "call_1"}]}, MISSING, "input[1].output"),
    ({"input": [CALL, {**OUTPUT, "output": 5}]}, KIND, "input[1].output"),
    ({"input": [SAID, TRIGGER, SAID]}, VALUE, "input[1]"),
    ({"input": [TRIGGER]}, VALUE, "input[0]"),
    ({"input": [SAID, {**TRIGGER, "x": 1}]}, UNKNOWN, "input[1].x"),
    ({"input": [SAID, SAID, {**SAID, "content": [{"type": "input_text"}]}]}, MISSING, "input[2].content[0].text"),
    ({"input": [{"role": "user", "content": 1}, {"x": 1}]}, KIND, "input[0].content"),
    # parts
    *said([({"type": kind, "x": 1}, UNSUPPORTED, ".type") for kind in sorted(UNSUPPORTED_PARTS)]),
    *said(
        [
            ({"text": "x"}, MISSING, ".type"),
            ({"type": "text", "text": "x"}, VALUE, ".type"),
            ({"type": "output_text", "text": "x"}, VALUE, ".type"),
            ({"type": "refusal", "refusal": "x"}, VALUE, ".type"),
            ({"type": "input_text", "text": 5}, KIND, ".text"),
            ({"type": "input_text", "text": "x", "tone": "loud"}, UNKNOWN, ".tone"),
            (
                {"type": "input_text", "text": "x", "prompt_cache_breakpoint": {"mode": "implicit"}},
                VALUE,
                ".prompt_cache_breakpoint.mode",
            ),
            ({"type": "input_image"}, MISSING, ".image_url"),
            ({**IMAGE, "detail": "tiny"}, VALUE, ".detail"),
            ({**IMAGE, "file_id": 5}, KIND, ".file_id"),
            ({"type": "input_file"}, MISSING, ".file_id"),
            ({"type": "input_file", "file_data": "eA=="}, MISSING, ".filename"),
            ({"type": "input_file", "text": "x"}, MISSING, ".filename"),
            ({"type": "input_file", "file_url": "file:///etc/passwd"}, VALUE, ".file_url"),
            ({"type": "input_file", "file_url": "https://a.example/a", "file_id": "f"}, EXCLUSIVE, ".file_url"),
            ({"type": "input_file", "file_id": "f", "detail": "high"}, UNSUPPORTED, ".detail"),
            ({**IMAGE, "image_url": "file:///etc/passwd"}, VALUE, ".image_url"),
        ]
    ),
    *said(
        [
            ({"type": "output_text", "text": "x", "annotations": 1}, KIND, ".annotations"),
            ({"type": "refusal"}, MISSING, ".refusal"),
        ],
        "assistant",
    ),
]

IMAGES: list[Case] = said(
    ({**IMAGE, "image_url": image_url}, code, ".image_url")
    for image_url, code in (
        ("data:image/png,hello", "unsupported_image_media_type"),
        ("data:image/png;base64", "unsupported_image_media_type"),
        ("data:text/plain;base64,aGVsbG8=", "unsupported_image_media_type"),
        ("data:image/svg+xml;base64,PHN2Zy8+", "unsupported_image_media_type"),
        ("data:image/png;base64,not base64", "invalid_base64_image"),
        ("data:image/png;base64,aGk", "invalid_base64_image"),
        ("data:image/png;base64,a=k=", "invalid_base64_image"),
        ("data:image/png;base64,äaaa", "invalid_base64_image"),
        (data_url(PNG) + "\n", "invalid_base64_image"),
        ("data:image/png;base64,", "invalid_image"),
        (data_url(b"BM" + bytes(60)), "invalid_image"),
        (data_url(PNG[:20]), "invalid_image"),
        (data_url(png_of(0, 7)), "invalid_image"),
        (data_url(b"RIFF....WAVEfmt "), "invalid_image"),
        (data_url(b"\xff\xd8\xff\xe0" + bytes(50)), "invalid_image"),
        (data_url(png_of(MAX_PIXELS, 2)), "image_too_large"),
        (data_url(png_of(2**31, 2**31)), "image_too_large"),
    )
)

_PART = {"type": "input_text", "text": "a"}
_NOTED = {"role": "assistant", "content": [{**_PART, "annotations": [{}] * (MAX_NOTES + 1)}]}

BOUNDS: list[Case] = [
    ({"input": [SAID] * (MAX_ITEMS + 1)}, MANY, "input"),
    ({"input": [SAID, {**SAID, "content": [_PART] * (MAX_PARTS + 1)}]}, MANY, "input[1].content"),
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
    *said([({"type": "input_image", "image_url": "https://x.test/\0"}, VALUE, ".image_url")]),
    ({"metadata": {"a": "\0"}}, VALUE, "metadata.a"),
    ({"metadata": {"a\0": "b"}}, VALUE, "metadata['a\\x00']"),
]
"""The character U+0000 in names and settings."""

CASES = [*FIELDS, *TOOLS, *CHOICES, *ITEMS, *IMAGES, *BOUNDS, *NUL]
