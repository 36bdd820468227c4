"""Items of hosted tools as Anthropic's blocks, and back: one row of a table for each type of item.

A call is two blocks: what the model asked for, and what came of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from app.messages.blocks import ServerResultBlock, ServerToolUseBlock
from app.protocol.types import Json


@dataclass(frozen=True, slots=True)
class BlockKind:
    """How one type of item is shown, and read."""

    result_type: str
    asked: Callable[[Json], Json]
    """Returns the `name` and the `input` of the call, and its `server_name` if it has one."""
    result: Callable[[Json], Any]
    """Returns the `content` of what came of it."""
    item: Callable[[ServerToolUseBlock, Any], Json]
    """Returns the item of the two blocks; the second argument is the content."""
    use_type: str = "server_tool_use"


def blocks_of(item: Json) -> list[Json]:
    """Returns the two blocks of a call that the server has run; none if the item is another one."""
    if (kind := KINDS.get(item["type"])) is None:
        return []
    use_id = f"srvtoolu_{item['id'].partition('_')[2]}"
    failed = {"is_error": item.get("error") is not None} if item["type"] == "mcp_call" else {}
    return [
        {"type": kind.use_type, "id": use_id, **kind.asked(item)},
        {"type": kind.result_type, "tool_use_id": use_id, **failed, "content": kind.result(item)},
    ]


def item_of(use: ServerToolUseBlock, results: Mapping[str, ServerResultBlock]) -> Json | None:
    """Returns the item of a call, whose result is among `results`; None if no item is like it."""
    name = "mcp_call" if use.type == "mcp_tool_use" else _ITEM_OF.get(use.name)
    if name is None:
        return None
    found = results.get(use.id)
    item = KINDS[name].item(use, None if found is None else found.content)
    if name == "mcp_call" and found is not None and found.is_error:
        item = {**item, "output": None, "error": item["output"]}
    return {"type": name, **item}


def _searched(item: Json) -> Json:
    action = item["action"]
    if action["type"] == "search":
        queries = action.get("queries") or ()
        return {"name": "web_search", "input": {"query": action.get("query") or " ".join(queries)}}
    return {"name": "web_fetch", "input": {name: action[name] for name in ("url", "pattern") if action.get(name)}}


def _found(item: Json) -> Any:
    if item.get("status") == "failed":
        return {"type": "web_search_tool_result_error", "error_code": "unavailable"}
    urls = [source["url"] for source in item["action"].get("sources") or ()]
    if item["action"]["type"] != "search":
        urls = [item["action"].get("url") or ""]
    empty = {"encrypted_content": "", "page_age": None}
    return [{"type": "web_search_result", "url": url, "title": url, **empty} for url in urls]


def _search_item(use: ServerToolUseBlock, content: Any) -> Json:
    if use.name == "web_fetch":
        return {"action": {"type": "open_page", "url": str(use.input.get("url", ""))}}
    found = [each for each in content if isinstance(each, dict)] if isinstance(content, list) else []
    sources = [{"type": "url", "url": str(each.get("url", ""))} for each in found]
    return {"action": {"type": "search", "query": str(use.input.get("query", "")), "sources": sources}}


def _ran(item: Json) -> Any:
    logs = [output["logs"] for output in item.get("outputs") or () if output["type"] == "logs"]
    text, failed = "".join(logs), item.get("status") == "failed"
    ended = {"stdout": "" if failed else text, "stderr": text if failed else "", "return_code": int(failed)}
    return {"type": "code_execution_result", **ended, "content": []}


def _code_item(use: ServerToolUseBlock, content: Any) -> Json:
    ended = content if isinstance(content, dict) else {}
    logs = f"{ended.get('stdout', '')}{ended.get('stderr', '')}"
    return {
        "code": str(use.input.get("code", "")),
        "container_id": "auto",
        "outputs": [{"type": "logs", "logs": logs}] if logs else [],
    }


def _called(item: Json) -> Json:
    return {"name": item["name"], "server_name": item["server_label"], "input": object_of(item["arguments"])}


def _returned(item: Json) -> Any:
    error = item.get("error")
    text = item.get("output") or "" if error is None else error if isinstance(error, str) else orjson.dumps(error)
    return [{"type": "text", "text": text if isinstance(text, str) else text.decode(), "citations": None}]


def _mcp_item(use: ServerToolUseBlock, content: Any) -> Json:
    parts = content if isinstance(content, list) else []
    text = (
        content if isinstance(content, str) else "".join(str(p.get("text", "")) for p in parts if isinstance(p, dict))
    )
    label = use.server_name or "mcp"
    return {"server_label": label, "name": use.name, "arguments": json_text(use.input), "output": text}


def object_of(text: str) -> Json:
    """Returns the JSON object in a call's arguments; an empty one if they are none, as of a call that was cut."""
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def json_text(value: Json) -> str:
    """Returns JSON with a blank after each colon and comma, as models are trained to write a call's arguments: a call
    that comes back is the same tokens."""
    return json.dumps(value, ensure_ascii=False)


KINDS: Mapping[str, BlockKind] = {
    "web_search_call": BlockKind("web_search_tool_result", _searched, _found, _search_item),
    "code_interpreter_call": BlockKind(
        "code_execution_tool_result",
        lambda item: {"name": "code_execution", "input": {"code": item.get("code") or ""}},
        _ran,
        _code_item,
    ),
    "mcp_call": BlockKind("mcp_tool_result", _called, _returned, _mcp_item, "mcp_tool_use"),
}
"""By the item's type."""
_ITEM_OF = {"web_search": "web_search_call", "web_fetch": "web_search_call", "code_execution": "code_interpreter_call"}
