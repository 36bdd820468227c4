"""The message that a response becomes: anthropic's Message."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.messages.hosted import blocks_of, object_of
from app.protocol.events.machine import MAX_TOKENS
from app.protocol.hosted_kinds import WEB_SEARCH
from app.protocol.item_types import MESSAGE, REASONING
from app.protocol.types import Json

CALL = "function_call"


@dataclass(frozen=True, slots=True)
class AnswerShape:
    """A request's wishes for the form of its answer."""

    stops: Sequence[str] = ()
    """Stop sequences. The response's text still has the one that ended it."""
    shows_thoughts: bool = False
    omits_thoughts: bool = False

    def stopped_by(self, text: str) -> str | None:
        """Returns the stop sequence at the end of a text: of several, the one that begins first."""
        return max((stop for stop in self.stops if text.endswith(stop)), key=len, default=None)


def message(response: Mapping[str, Any], shape: AnswerShape) -> Json:
    """Returns the message of a response that is completed or incomplete."""
    content = [block for item in response["output"] for block in _blocks(item, shape)]
    stop = _cut_stop(content, shape)
    content = [block for block in content if block["type"] != "text" or block["text"]]
    return {**head(response), "content": content, **ending(response, stop), "usage": usage(response)}


def head(response: Mapping[str, Any]) -> Json:
    """Returns what a message begins with."""
    return {
        "id": f"msg_{response['id'].partition('_')[2]}",
        "type": "message",
        "role": "assistant",
        "model": response["model"],
        **({"omitted_tools": response["omitted_tools"]} if response.get("omitted_tools") else {}),
    }


def ending(response: Mapping[str, Any], stop: str | None) -> Json:
    """Why the model ended; `stop` is the stop sequence at the end of its text."""
    details = response["incomplete_details"]
    reason = None if details is None else details["reason"]
    parts = [part for item in response["output"] if item["type"] == MESSAGE for part in item["content"]]
    if reason == MAX_TOKENS:
        asked, got = response["max_output_tokens"], response["usage"]["output_tokens"]
        is_full = got < asked  # the context was full before the answer was as long as asked for
        return {"stop_reason": "model_context_window_exceeded" if is_full else "max_tokens", "stop_sequence": None}
    if any(part["type"] == "refusal" for part in parts):
        return {"stop_reason": "refusal", "stop_sequence": None}
    if any(item["type"] == CALL for item in response["output"]):
        return {"stop_reason": "tool_use", "stop_sequence": None}
    return {"stop_reason": "end_turn" if stop is None else "stop_sequence", "stop_sequence": stop}


def usage(response: Mapping[str, Any]) -> Json:
    """Returns anthropic's usage: what came from the prefix cache counts apart."""
    used = response["usage"]
    cached, calls = used["input_tokens_details"]["cached_tokens"], [item["type"] for item in response["output"]]
    searches = calls.count(WEB_SEARCH.call_type)
    return {
        "input_tokens": used["input_tokens"] - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": used["output_tokens"],
        "output_tokens_details": {"thinking_tokens": used["output_tokens_details"]["reasoning_tokens"]},
        "server_tool_use": {"web_search_requests": searches, "web_fetch_requests": 0} if searches else None,
    }


def tool_use(item: Json) -> Json:
    return {"type": "tool_use", "id": item["call_id"], "name": item["name"]}


def thinking(item: Json, shape: AnswerShape) -> Json:
    """Returns the block of a reasoning item that is done."""
    text = "" if shape.omits_thoughts else "".join(part["text"] for part in item["content"])
    return {"type": "thinking", "thinking": text, "signature": item.get("encrypted_content") or ""}


def citation(annotation: Json, text: str) -> Json | None:
    """Returns what an annotation of `text` cites, if it cites a page."""
    if annotation["type"] != "url_citation":
        return None
    return {
        "type": "web_search_result_location",
        "cited_text": text[annotation["start_index"] : annotation["end_index"]],
        "encrypted_index": "",
        "title": annotation.get("title"),
        "url": annotation["url"],
    }


def _blocks(item: Json, shape: AnswerShape) -> Iterable[Json]:
    if item["type"] == MESSAGE:
        yield from map(_text, item["content"])
    elif item["type"] == REASONING:
        if shape.shows_thoughts:
            yield thinking(item, shape)
    elif item["type"] == CALL:
        yield {**tool_use(item), "input": object_of(item["arguments"])}
    else:
        yield from blocks_of(item)


def _text(part: Json) -> Json:
    if part["type"] == "refusal":
        return {"type": "text", "text": part["refusal"], "citations": None}
    found = [cited for note in part["annotations"] if (cited := citation(note, part["text"])) is not None]
    return {"type": "text", "text": part["text"], "citations": found or None}


def _cut_stop(content: Sequence[Json], shape: AnswerShape) -> str | None:
    """Takes the stop sequence off the last text, and returns it, if it ends with one."""
    if not content or content[-1]["type"] != "text":
        return None
    text = content[-1]["text"]
    stop = shape.stopped_by(text)
    if stop is not None:
        content[-1]["text"] = text[: -len(stop)]
    return stop
