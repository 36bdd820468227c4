"""A Messages request as the request for a response that it becomes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from app.messages import blocks, names, request
from app.messages.hosted import item_of, json_text
from app.messages.names import dotted, message_names
from app.messages.request import CountMessageTokens, CreateMessage
from app.messages.tools import McpServer, McpToolset, OwnTool, ServerTool, ToolChoice, hosted_as
from app.protocol.errors import InvalidRequest
from app.protocol.hosted_kinds import HOSTED_INCLUDES
from app.protocol.include import ENCRYPTED_REASONING
from app.protocol.requests.tools.omitted import OmittedTool
from app.protocol.requests.validation import validate
from app.protocol.tasks import COUNT
from app.protocol.types import Json
from app.protocol.unsealing import SUMMARY_HEAD
from app.translation.names import Names, Origin, Placed, renamed_error
from app.translation.request import TranslatedRequest, checked_fields

BILLING = "x-anthropic-billing-header:"
"""Begins a line that Claude Code puts in front of `system`. It changes with each start of it, some versions' with each
request, and nothing behind it would come from the prefix cache."""
FAILED = "Error: "
"""The text in front of a tool's result with `is_error`."""

SentModel = TypeVar("SentModel", bound=CountMessageTokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesRequest(TranslatedRequest):
    """A Messages request that was checked, as a request for a response."""

    stops: tuple[str, ...] = ()
    shows_thoughts: bool = False
    """Whether the client asked for thoughts. Others look for the answer in the first block."""
    omits_thoughts: bool = False
    """Whether it wants them sealed alone."""


def messages_request(body: Mapping[str, Any]) -> MessagesRequest:
    """Returns the request in a decoded body. Raises InvalidRequest, which names the field as Anthropic's API does."""
    sent = _validated(CreateMessage, body)
    made, called = _made(sent)
    stops = tuple(dict.fromkeys(sent.stop_sequences or ()))
    made |= {name: body[name] for name in body if name in request.SAME}
    made |= {"store": bool(sent.store), "max_output_tokens": sent.max_tokens}
    if stops:  # Where the text ends tells which of them ended it.
        made |= {"stop": list(stops), "include_stop_str_in_output": True}
    thinking = sent.thinking
    shows = thinking is not None and thinking.type != "disabled"
    made["include"] = [*([ENCRYPTED_REASONING] if shows else ()), *HOSTED_INCLUDES]
    return MessagesRequest(
        checked_fields(made, called),
        body,
        in_session=True,
        names=called,
        stops=stops,
        shows_thoughts=shows,
        omits_thoughts=thinking is not None and thinking.display == "omitted",
    )


def count_request(body: Mapping[str, Any]) -> TranslatedRequest:
    """Returns a request with the task COUNT. Raises as `messages_request`.

    The prompt is that of a message with the same fields. Fields that no prompt depends on may be there, too.
    """
    prompt = {name: value for name, value in body.items() if name not in _UNCOUNTED}
    made, called = _made(_validated(CountMessageTokens, prompt))
    made |= {name: prompt[name] for name in ("model", "chat_template_kwargs") if name in prompt}
    fields = checked_fields({**made, "store": False}, called)
    return TranslatedRequest(fields, body, COUNT, in_session=True, names=called)


_UNCOUNTED = frozenset(CreateMessage.model_fields) - frozenset(CountMessageTokens.model_fields)


def _validated(model: type[SentModel], body: Mapping[str, Any]) -> SentModel:
    try:
        sent = validate(model, body)
        _check(sent)
    except InvalidRequest as error:
        if error.error.param is not None:
            error.error = renamed_error(error.error, dotted(error.error.param))
        raise
    return sent


def _check(sent: CountMessageTokens) -> None:
    """Raises InvalidRequest about fields that no field of a response could stand for."""
    if isinstance(sent.messages[-1], blocks.AssistantTurn):
        where = f"messages[{len(sent.messages) - 1}]"
        message = (
            f"Invalid '{where}': models here do not go on with a message of the role 'assistant'; end with 'user'."
        )
        raise InvalidRequest(message, where, "invalid_value")
    if sent.tool_choice is not None and sent.tool_choice.type == "tool" and sent.tool_choice.name is None:
        message = "Missing required parameter: 'tool_choice.name'."
        raise InvalidRequest(message, "tool_choice.name", "missing_required_parameter")


def _made(sent: CountMessageTokens) -> tuple[Json, Names]:
    """Returns the fields that the prompt is made of, and where they come from."""
    later = _later(sent.tools or ())
    items = [placed for index, message in enumerate(sent.messages) for placed in _items(index, message, later)]
    tools = list(_tools(sent))
    made: Json = {"input": [item for _, item in items], "instructions": _system(sent.system)}
    if tools:
        made["tools"] = [tool for _, tool in tools]
    if sent.tool_choice is not None:
        made |= _choice(sent.tool_choice, sent.tools or ())
    if (effort := _effort(sent)) is not None:
        made["reasoning"] = {"effort": effort}
    if (form := sent.format) is not None:
        made["text"] = {"format": {"type": form.type, "name": "answer", "schema": form.schema_, "strict": True}}
    old = sent.output_config is None or sent.output_config.format is None
    return made, message_names(items, tools, "output_format" if old else "output_config.format")


def _effort(sent: CountMessageTokens) -> str | None:
    """Returns the effort; None: the model's own default. A client that asks for thoughts gets some."""
    asked = None if sent.output_config is None else sent.output_config.effort
    if sent.thinking is None:
        return asked
    return "none" if sent.thinking.type == "disabled" else asked or "medium"


def _system(system: str | Sequence[blocks.TextBlock] | None) -> str | None:
    texts = [system] if isinstance(system, str) else [block.text for block in system or ()]
    return "\n\n".join(filter(None, map(_without_billing, texts))) or None


def _without_billing(text: str) -> str:
    head, _, rest = text.partition("\n")
    return rest.lstrip("\n") if head.startswith(BILLING) else text


# -- tools -------------------------------------------------------------------------------------------------------


def _function(tool: OwnTool) -> Json:
    asked = {"description": tool.description, "strict": tool.strict}
    fields = {name: value for name, value in asked.items() if value is not None}
    return {"type": "function", "name": tool.name, "parameters": {"type": "object", **tool.input_schema}, **fields}


def _later(tools: Sequence[Any]) -> dict[str, Json]:
    """Returns the tools, by name, that the model may call once a result of the client's own search names them."""
    return {tool.name: _function(tool) for tool in tools if isinstance(tool, OwnTool) and tool.defer_loading}


def _tools(sent: CountMessageTokens) -> Iterable[Placed]:
    toolsets: dict[str, tuple[str, McpToolset]] = {}
    for index, tool in enumerate(sent.tools or ()):
        place = f"tools[{index}]"
        if isinstance(tool, McpToolset):
            if tool.mcp_server_name in toolsets:
                raise _unfit_toolset(place, "'tools' has a toolset of this server already")
            toolsets[tool.mcp_server_name] = place, tool
        elif isinstance(tool, OmittedTool):
            yield Origin(place), tool.model_dump()
        elif not isinstance(tool, OwnTool):
            yield Origin(place, names.TOOL), _server_tool(tool)
        elif not tool.defer_loading:
            yield Origin(place, names.TOOL), _function(tool)
    for index, server in enumerate(sent.mcp_servers or ()):
        place, toolset = toolsets.pop(server.name, (f"mcp_servers[{index}]", None))
        if (made := _mcp(server, toolset, place)) is not None:
            yield Origin(f"mcp_servers[{index}]", names.SERVER), made
    for place, _ in toolsets.values():
        raise _unfit_toolset(place, "no server of 'mcp_servers' has this name")


def _unfit_toolset(place: str, reason: str) -> InvalidRequest:
    where = dotted(f"{place}.mcp_server_name")
    return InvalidRequest(f"Invalid '{where}': {reason}.", where, "invalid_value")


def _server_tool(tool: ServerTool) -> Json:
    kind = hosted_as(tool.type)
    if kind == "code_interpreter":
        return {"type": kind, "container": {"type": "auto"}}
    filters = {"allowed_domains": tool.allowed_domains, "blocked_domains": tool.blocked_domains}
    place = None if tool.user_location is None else tool.user_location.model_dump()
    return {"type": kind, "filters": filters, "user_location": place}


def _mcp(server: McpServer, toolset: McpToolset | None, place: str) -> Json | None:
    """Returns the server's tools as the request wants them; None: none of them."""
    own = server.tool_configuration
    allowed = None if own is None else own.allowed_tools
    if own is not None and own.enabled is False:
        return None
    if toolset is not None:
        switched = {name: config.enabled for name, config in (toolset.configs or {}).items()}
        if toolset.default_config is not None and toolset.default_config.enabled is False:
            allowed = [name for name, enabled in switched.items() if enabled]
        elif False in switched.values():
            where = dotted(f"{place}.configs")
            message = (
                f"'{where}' is not supported yet where it takes tools away; allow tools with 'default_config' false."
            )
            raise InvalidRequest(message, where, "unsupported_parameter")
        if allowed == []:
            return None
    made = {"server_url": server.url, "authorization": server.authorization_token, "allowed_tools": allowed}
    sent = {name: value for name, value in made.items() if value is not None}
    return {"type": "mcp", "server_label": server.name, "require_approval": "never", **sent}


def _choice(choice: ToolChoice, tools: Sequence[Any]) -> Json:
    made: Json = {"tool_choice": {"auto": "auto", "any": "required", "none": "none"}.get(choice.type)}
    if choice.type == "tool":
        hosted = [hosted_as(tool.type) for tool in tools if tool.type and getattr(tool, "name", None) == choice.name]
        kind = next(filter(None, hosted), None)
        made["tool_choice"] = {"type": "function", "name": choice.name} if kind is None else {"type": kind}
    return {**made, "parallel_tool_calls": not choice.disable_parallel_tool_use}


# -- messages ----------------------------------------------------------------------------------------------------


def _items(index: int, message: blocks.Message, later: dict[str, Json]) -> Iterable[Placed]:
    """Yields the items of `input` that a message becomes. Tools that it loads are taken out of `later`."""
    where, content = f"messages[{index}]", message.content
    if isinstance(content, str) or not content:
        yield Origin(where, names.STRING), {"role": message.role, "content": content or ""}
        return
    results = {block.tool_use_id: block for block in content if isinstance(block, blocks.ServerResultBlock)}
    loaded: list[Placed] = []
    run = _Run(message.role, where)
    for number, block in enumerate(content):
        place = f"{where}.content[{number}]"
        if isinstance(block, _PARTS):
            run.add(place, _parts(block))
            continue
        yield from run.ended()
        loaded += _loaded(place, block, later)
        if isinstance(block, blocks.ToolResultBlock):
            yield _result(place, block)
        elif (item := _item(place, block, results)) is not None:
            yield item
    yield from loaded
    yield from run.ended()


class _Run:
    """Blocks in a row that are one message."""

    def __init__(self, role: str, where: str) -> None:
        self._role = role
        self._where = where
        self.parts: list[Json] = []
        self._places: list[str] = []

    def add(self, place: str, parts: Sequence[Json]) -> None:
        self.parts += parts
        self._places += [place] * len(parts)

    def ended(self) -> Iterable[Placed]:
        """Yields the message, if there is one."""
        if self.parts:
            yield Origin(self._where, names.PART, self._places), {"role": self._role, "content": self.parts}
        self.parts, self._places = [], []


def _item(place: str, block: Any, results: Mapping[str, blocks.ServerResultBlock]) -> Placed | None:
    """Returns the item that a block becomes, if it becomes one of its own."""
    if isinstance(block, blocks.ThinkingBlock):
        if block.thinking:  # The text will do: a seal of another server's is no fault.
            return Origin(place, names.THOUGHT), _thought(content=[{"type": "reasoning_text", "text": block.thinking}])
        return (Origin(place, names.THOUGHT), _thought(encrypted_content=block.signature)) if block.signature else None
    if isinstance(block, blocks.RedactedThinkingBlock):
        return Origin(place, names.SEALED), _thought(encrypted_content=block.data)
    if isinstance(block, blocks.ToolUseBlock):
        call = {"call_id": block.id, "name": block.name, "arguments": json_text(block.input)}
        return Origin(place, names.CALL), {"type": "function_call", **call}
    item = item_of(block, results) if isinstance(block, blocks.ServerToolUseBlock) else None
    return None if item is None else (Origin(place, names.WHOLE), item)


def _thought(**fields: Any) -> Json:
    return {"type": "reasoning", "summary": [], **fields}


def _result(place: str, block: blocks.ToolResultBlock) -> Placed:
    content, inside = block.content or "", f"{place}.content"
    failed = FAILED if block.is_error else ""
    if isinstance(content, str):
        output: str | list[Json] = failed + content
        places: list[str] = []
    else:
        read = [(f"{inside}[{number}]", part) for number, each in enumerate(content) for part in _parts(each)]
        said = [(inside, _text(failed))] if failed else []
        places, output = [where for where, _ in (*said, *read)], [part for _, part in (*said, *read)]
    item = {"type": "function_call_output", "call_id": block.tool_use_id, "output": output}
    return Origin(place, names.RESULT, places), item


def _loaded(place: str, block: Any, later: dict[str, Json]) -> Iterable[Placed]:
    """Yields the item that brings the tools that a block refers to for the first time."""
    named: list[str | None] = []
    tools: list[Json] = []
    if isinstance(block, blocks.ToolResultBlock) and isinstance(block.content, list):
        named = [each.tool_name for each in block.content if isinstance(each, blocks.ToolReferenceBlock)]
    elif isinstance(block, blocks.ToolAdditionBlock):
        named = [block.tool.name]
        tools = [_function(block.tool.definition)] if isinstance(block.tool.definition, OwnTool) else []
    tools += [later.pop(name) for name in named if name in later]
    if tools:
        yield Origin(place, names.WHOLE), {"type": "additional_tools", "role": "developer", "tools": tools}


# -- parts -------------------------------------------------------------------------------------------------------


def _text(text: str) -> Json:
    return {"type": "input_text", "text": text}


def _parts(block: Any) -> list[Json]:
    """Returns the parts of a message, or of a result, that a block becomes."""
    if isinstance(block, blocks.TextBlock):
        return [_text(block.text)]
    if isinstance(block, blocks.ImageBlock):
        return [_image(block)]
    if isinstance(block, blocks.DocumentBlock):
        return [*([_text(block.context)] if block.context else ()), _document(block)]
    if isinstance(block, blocks.SearchResultBlock):
        texts = "\n".join(each.text for each in block.content)
        return [_text(f"{block.title}\n{block.source}\n{texts}")]
    if isinstance(block, blocks.ToolReferenceBlock):
        return [_text(f"The tool '{block.tool_name}' can be called from here on.")]
    assert isinstance(block, blocks.CompactionBlock)
    return [_text(SUMMARY_HEAD + block.content)] if block.content else []


_PARTS = blocks.TextBlock | blocks.ImageBlock | blocks.DocumentBlock | blocks.SearchResultBlock | blocks.CompactionBlock


def _image(block: blocks.ImageBlock) -> Json:
    source = block.source
    if source.type == "file":
        return {"type": "input_image", "file_id": source.file_id}
    url = source.url if source.type == "url" else f"data:{source.media_type};base64,{source.data}"
    return {"type": "input_image", "image_url": url}


def _document(block: blocks.DocumentBlock) -> Json:
    source, title = block.source, {"filename": block.title} if block.title else {}
    if source.type == "url":
        return {"type": "input_file", "file_url": source.url, **title}
    if source.type == "file":
        return {"type": "input_file", "file_id": source.file_id, **title}
    if source.type == "base64":
        data = f"data:{source.media_type};base64,{source.data}"
        return {"type": "input_file", "file_data": data, "filename": block.title or "document.pdf"}
    text = source.data if source.type == "text" else source.content
    if isinstance(text, list):
        text = "\n".join(each.text for each in text)
    return {"type": "input_file", "filename": block.title or "document.txt", "text": text}
