"""A request for a response that was checked, and what of it is stored."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import orjson

from app.protocol.include import LOGPROBS
from app.protocol.requests.bodies.consistency import check_consistent
from app.protocol.requests.bodies.create_response import CreateResponse
from app.protocol.requests.bodies.text_config import Reasoning, TextConfig
from app.protocol.requests.fields import OPAQUE
from app.protocol.requests.items.any_item import CompactionTrigger, stored_items
from app.protocol.requests.tools.mcp import McpTool
from app.protocol.requests.validation import validate
from app.protocol.tasks import COMPACT
from app.protocol.types import Json
from app.sizes import item_count

SAMPLING_DEFAULTS: Mapping[str, float] = MappingProxyType(
    {"temperature": 1.0, "top_p": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
)
"""OpenAI's documented defaults; those of a served model override them."""

TIER_ALIASES: Mapping[str, str] = MappingProxyType(
    {"auto": "default", "scale": "default", "fast": "priority", "ultrafast": "priority"}
)
"""Service tiers that are other names of ours, or that become ours: the response says which one serves it."""

AS_SENT = (
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "previous_response_id",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "user",
)

PARTS = ("prompt_cache_options", "image")
"""Fields that are objects, or null."""


@dataclass(frozen=True, slots=True)
class ResponseRequest:
    """A request that was checked."""

    fields: CreateResponse
    body: Mapping[str, Any]
    """As the client sent it, but for tools that are left out (omitted.py)."""
    task: str | None = None
    """`tasks.COUNT`; None: generate."""
    size: int = 0
    """Bytes of the JSON in which it came."""
    in_session: bool = False
    """Whether its client sends a whole session each time, so that what is refused once ends the session. What the model
    does not take then becomes what it takes, and the prompt leaves room for its answer, or is refused as too long."""

    @property
    def model(self) -> str:
        return self.fields.model

    @property
    def item_count(self) -> int:
        """Items, parts of their content, and tools that the client sent."""
        sent = self.fields.input
        return len(self.fields.tools or ()) + (item_count(sent) if isinstance(sent, list) else 0)

    @property
    def background(self) -> bool:
        return bool(self.fields.background)

    @property
    def stream(self) -> bool:
        return bool(self.fields.stream)

    @property
    def obfuscation(self) -> bool:
        """Whether the reader of this request's stream wants its deltas padded."""
        options = self.fields.stream_options
        return options is not None and bool(options.include_obfuscation)

    @property
    def other_names(self) -> Mapping[str, str]:
        """What the client called fields that are stored under another name, by that name."""
        return {} if self.fields.reasoning_effort is None else {"reasoning.effort": "reasoning_effort"}

    @property
    def tier(self) -> str:
        """`default`, `flex` or `priority`."""
        tier = self.fields.service_tier or "auto"
        return TIER_ALIASES.get(tier, tier)

    def fingerprint(self) -> bytes:
        """Returns a hash of the body: the same for the same JSON value, whatever its spelling.

        Opaque keys do not count: a client's metadata may change from one try to the next.
        """
        body = _without_opaque(self.body)
        if isinstance(items := body.get("input"), list):
            body["input"] = [_without_opaque(item) for item in items]
        return hashlib.sha256(orjson.dumps(body, option=orjson.OPT_SORT_KEYS)).digest()

    def stored(self, response_id: str, defaults: Mapping[str, float]) -> Json:
        """Returns the request as the store keeps it and a worker reads it: it always has every key.

        `defaults` are the served model's sampling parameters; they fill what the client left open.
        """
        fields = self.fields
        conversation = fields.conversation_id
        return {
            "model": fields.model,
            "input": self._items(response_id),
            "conversation": None if conversation is None else {"id": conversation},
            "metadata": fields.metadata or {},
            "store": fields.store is not False,
            "stream": self.stream,
            "background": self.background,
            "tools": [tool.stored() for tool in fields.kept_tools],
            "omitted_tools": fields.omitted_tools,
            "tool_choice": self._tool_choice(),
            "parallel_tool_calls": fields.parallel_tool_calls is not False,
            "truncation": fields.truncation or "disabled",
            "text": (fields.text or TextConfig()).stored(),
            **{name: None if (sent := getattr(fields, name)) is None else sent.stored() for name in PARTS},
            "reasoning": self._reasoning(),
            "top_logprobs": fields.top_logprobs or 0,
            "include": self._include(),
            "service_tier": self.tier,
            "continuation_id": fields.continuation_id,
            **{name: getattr(fields, name) for name in AS_SENT},
            **self._sampling(defaults),
            "extra": {**_beside(SAMPLING_DEFAULTS, defaults), **fields.extra()},
            "previous_input_messages": fields.previous_input_messages,
            "enable_response_messages": bool(fields.enable_response_messages),
            "secrets": {},
            "compaction": self._compaction(),
            "summary_tokens": None,
            "leaves_room": self.in_session,
            "task": self.task or (COMPACT if fields.compacts else None),
        }

    def secrets(self) -> dict[str, dict[str, str]]:
        """Returns headers for MCP servers, by `server_label`. The store keeps them sealed and never shows them."""
        tools = (tool for tool in self.fields.tools or () if isinstance(tool, McpTool))
        return {tool.server_label: headers for tool in tools if (headers := tool.secrets())}

    def _items(self, response_id: str) -> list[Json]:
        suffix = response_id.split("_", 1)[-1]
        items = self.fields.input
        if isinstance(items, str):
            part = {"type": "input_text", "text": items}
            item = {"type": "message", "id": f"msg_{suffix}_in0", "status": "completed", "role": "user"}
            return [{**item, "content": [part]}]
        return stored_items((item for item in items or () if not isinstance(item, CompactionTrigger)), suffix)

    def _tool_choice(self) -> str | Json:
        choice = self.fields.tool_choice or "auto"
        return choice if isinstance(choice, str) else choice.stored()

    def _reasoning(self) -> Json | None:
        effort, reasoning = self.fields.reasoning_effort, self.fields.reasoning
        if effort is None:
            return None if reasoning is None else reasoning.stored()
        return {**(reasoning or Reasoning()).stored(), "effort": effort}

    def _compaction(self) -> Json | None:
        """When the context is compacted before the answer; None: never."""
        found = self.fields.context_management
        return {"threshold": found[0].compact_threshold} if found else None

    def _include(self) -> list[str]:
        """`top_logprobs` includes log probabilities by itself."""
        included = dict.fromkeys(self.fields.include or ())
        return list(included | ({LOGPROBS: None} if self.fields.top_logprobs else {}))

    def _sampling(self, defaults: Mapping[str, float]) -> dict[str, float]:
        fallback = {**SAMPLING_DEFAULTS, **defaults}
        given = {name: getattr(self.fields, name) for name in SAMPLING_DEFAULTS}
        return {name: float(fallback[name] if value is None else value) for name, value in given.items()}


def _beside(named: Mapping[str, float], defaults: Mapping[str, float]) -> dict[str, float]:
    """The defaults of parameters that OpenAI's API does not have."""
    return {name: value for name, value in defaults.items() if name not in named}


def _without_opaque(sent: Mapping[str, Any]) -> Json:
    return {key: value for key, value in sent.items() if key not in OPAQUE}


def checked_request(body: Mapping[str, Any], task: str | None = None) -> ResponseRequest:
    """Returns the request in a decoded body. Raises InvalidRequest about the first field at fault."""
    fields = validate(CreateResponse, body)
    check_consistent(fields, body)
    return ResponseRequest(fields, body, task)
