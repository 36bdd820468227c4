"""Harmony held against an outside judge: openai/harmony's own tests.

The cases are restated in our own words, each under the name of the judge's test. Prompts are compared with what the
openai_harmony package renders, or with a text where the package's header order differs (prompt.py says why).
docs/internals/harmony.md says where Longhaul decides otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from openai_harmony import Conversation as LibraryConversation
from openai_harmony import (
    DeveloperContent,
    Message,
    ReasoningEffort,
    RenderConversationConfig,
    Role,
    StreamableParser,
    SystemContent,
    ToolDescription,
    ToolNamespaceConfig,
)

from app.protocol.types import Json
from tests.support.requests import message, reasoning
from tests.unit.formats.harmony.cases import CITY, DAY, text_of, tokens_of
from workers.engine import harmony_vocabulary as harmony
from workers.engine.output_format import Tool
from workers.formats.harmony.history import earlier_messages
from workers.formats.harmony.prompt import Conversation, Preface, namespace
from workers.formats.harmony.reader import messages_in

DATE = "2025-08-06"  # of DAY
RICH: Json = {
    "type": "object",
    "description": "all of it",
    "properties": {
        "name": {"type": "string", "title": "NAME", "description": "A name", "examples": ["Ada", "Max"]},
        "nick": {"type": "string", "nullable": True, "default": "none"},
        "size": {"type": "string", "enum": ["s", "m"], "default": "m"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "code": {"oneOf": [{"type": "string", "default": "x"}, {"type": "number", "description": "or this"}]},
    },
}


def prompt(items: Sequence[Json], *, all_reasoning: bool = False, **preface: Any) -> str:
    """Our prompt."""
    conversation = Conversation(Preface(DAY, **preface), items, all_reasoning=all_reasoning)
    return text_of(conversation.tokens())


def library(*messages: Message, drop: bool = True) -> str:
    """The package's prompt."""
    config = RenderConversationConfig(auto_drop_analysis=drop)
    conversation = LibraryConversation.from_messages(list(messages))
    return text_of(harmony.encoding().render_conversation_for_completion(conversation, Role.ASSISTANT, config))


def system(content: SystemContent) -> Message:
    return Message.from_role_and_content(Role.SYSTEM, content.with_conversation_start_date(DATE))


def user(text: str) -> Message:
    return Message.from_role_and_content(Role.USER, text)


def said(text: str, channel: str) -> Message:
    return Message.from_role_and_content(Role.ASSISTANT, text).with_channel(channel)


def described(name: str, about: str, parameters: Json | None) -> tuple[Tool, ToolDescription]:
    """A tool as we take it, and as the package does."""
    return Tool(name, about, parameters, False, "tools[0]"), ToolDescription.new(name, about, parameters)


# -- openai/harmony: prompts -------------------------------------------------------------------------------------

TOOLS = [described("where", "Where the user is.", None), described("sink", "Many kinds.", RICH)]
LOOKUP = [described("lookup", "Looks a city up.", CITY)]
ASKED, ANSWERED, AGAIN = message("One and one?"), message("Two.", "assistant"), message("And nine by three?")


def test_does_not_drop_if_ongoing_analysis() -> None:
    """The call as the model wrote it comes back by `previous_input_messages`; its mark must be a token."""
    sent = [
        {"role": "user", "content": "Rome?"},
        {"role": "assistant", "channel": "analysis", "content": "I look it up."},
        {
            "role": "assistant",
            "channel": "commentary",
            "recipient": "functions.lookup",
            "content_type": "<|constrain|>json",
            "content": "{}",
        },
        {"role": "tool", "name": "functions.lookup", "content": "sunny"},
    ]
    ours = Conversation(Preface(DAY), (), earlier_messages(sent)).tokens()
    expected = tokens_of(
        "<|start|>user<|message|>Rome?<|end|><|start|>assistant<|channel|>analysis<|message|>I look it up.<|end|>"
        "<|start|>assistant to=functions.lookup<|channel|>commentary <|constrain|>json<|message|>{}<|call|>"
        "<|start|>functions.lookup<|message|>sunny<|end|><|start|>assistant"
    )
    assert ours[-len(expected) :] == expected


HELLO, PIRATE, NEW = user("One and one?"), "Speak like a pirate.", SystemContent.new
OLD = ([ASKED, reasoning("Easy."), ANSWERED, AGAIN], [HELLO, said("Easy.", "analysis"), said("Two.", "final")])
EFFORTS = (ReasoningEffort.LOW, ReasoningEffort.MEDIUM, ReasoningEffort.HIGH)

# Our items and preface; the package's system content, developer content and messages.
PROMPTS: dict[str, tuple[Sequence[Json], Json, SystemContent, DeveloperContent | None, Sequence[Message]]] = {
    "test_simple_convo": ([ASKED], {}, NEW(), None, [HELLO]),
    **{
        f"test_simple_convo_with_effort {effort.value} {told}": (
            [ASKED],
            {"effort": effort.value.lower(), "instructions": told},
            NEW().with_reasoning_effort(effort),
            DeveloperContent.new().with_instructions(told) if told else None,
            [HELLO],
        )
        for effort in EFFORTS
        for told in (None, PIRATE)
    },
    "test_render_functions_with_parameters": (
        [ASKED],
        {"instructions": PIRATE, "tools": [namespace("functions", None, (tool for tool, _ in TOOLS))]},
        NEW(),
        DeveloperContent.new().with_instructions(PIRATE).with_function_tools([tool for _, tool in TOOLS]),
        [HELLO],
    ),
    "test_no_tools": ([], {}, NEW(), None, []),
    "test_browser_tool_only": ([], {"native": [ToolNamespaceConfig.browser()]}, NEW().with_browser_tool(), None, []),
    "test_browser_and_function_tool": (
        [],
        {
            "native": [ToolNamespaceConfig.browser()],
            "tools": [namespace("functions", None, (tool for tool, _ in LOOKUP))],
        },
        NEW().with_browser_tool(),
        DeveloperContent.new().with_function_tools([tool for _, tool in LOOKUP]),
        [],
    ),
    "test_browser_and_python_tool": (
        [],
        {"native": [ToolNamespaceConfig.browser(), ToolNamespaceConfig.python()]},
        NEW().with_browser_tool().with_python_tool(),
        None,
        [],
    ),
    "test_dropping_cot_by_default": (OLD[0], {}, NEW(), None, [*OLD[1], user("And nine by three?")]),
    "test_preserve_cot": (OLD[0], {"all_reasoning": True}, NEW(), None, [*OLD[1], user("And nine by three?")]),
}


@pytest.mark.parametrize("name", PROMPTS)
def test_prompts_are_those_of_the_format(name: str) -> None:
    items, preface, head, told, messages = PROMPTS[name]
    developers = [Message.from_role_and_content(Role.DEVELOPER, told)] if told else []
    expected = library(system(head), *developers, *messages, drop="all_reasoning" not in preface)
    assert prompt(items, **preface) == expected


# -- openai/harmony: answers -------------------------------------------------------------------------------------

A, F = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
N = "<|end|><|start|>assistant"
CALL = '{"city":"Oslo"}'
ODD = [9552]
"""A token that ends within a character: a space and two of its four bytes."""
Found = tuple[str | None, str | None, str | None, str]
CONSTRAINED: Found = ("commentary", "functions.weather", "<|constrain|>json", CALL)

ANSWERS: dict[str, tuple[Sequence[int], list[Found]]] = {
    "test_tool_call_with_constrain_marker_adjacent": (
        tokens_of(f" to=functions.weather<|channel|>commentary<|constrain|>json<|message|>{CALL}<|call|>"),
        [CONSTRAINED],
    ),
    "test_tool_call_with_channel_before_recipient_and_constrain_adjacent": (
        tokens_of(f"<|channel|>commentary to=functions.weather<|constrain|>json<|message|>{CALL}<|call|>"),
        [CONSTRAINED],
    ),
    "test_streamable_parser": (
        tokens_of(
            f"{A}I search.{N}<|channel|>commentary to=browser.search code<|message|>{CALL}<|call|>"
            "<|start|>browser.search to=assistant<|channel|>commentary<|message|>{}<|end|>"
        ),
        [
            ("analysis", None, None, "I search."),
            ("commentary", "browser.search", "code", CALL),
            ("commentary", "assistant", None, "{}"),
        ],
    ),
    "test_streamable_parser_missing_message_token": (
        tokens_of(f"I decline{N}{A}Decline.{N}{F}Sorry.<|return|>"),
        [("final", None, None, "I decline"), ("analysis", None, None, "Decline."), ("final", None, None, "Sorry.")],
    ),
    "test_streamable_parser_missing_message_token_tool_call": (
        tokens_of(f"I look.{N} to=functions.weather<|channel|>commentary json<|message|>{CALL}<|call|>"),
        [("final", None, None, "I look."), ("commentary", "functions.weather", "json", CALL)],
    ),
    "test_missing_message_token_requires_non_strict_mode": (
        tokens_of("<|channel|>commentary Hi<|end|>"),
        [("commentary", None, None, "Hi")],
    ),
    "test_streamable_parser_invalid_utf8_decoding_multi_byte_token_no_eos_marker": (
        tokens_of("<|message|>") + ODD + tokens_of(" wonderful tale"),
        [(None, None, None, " \ufffd wonderful tale")],
    ),
    "test_streamable_parser_does_not_leak_bytes_between_messages": (
        tokens_of("<|message|>") + ODD + ODD + tokens_of(f"{N}<|message|>Yes<|end|>"),
        [(None, None, None, " \ufffd \ufffd"), (None, None, None, "Yes")],
    ),
    "test_streamable_parser_flushes_partial_bytes_on_eos": (
        tokens_of("<|message|>") + ODD + tokens_of("Yes"),
        [(None, None, None, " \ufffdYes")],
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_answers_are_read_as_the_judge_and_the_packages_lenient_parser_read_them(name: str) -> None:
    tokens, expected = ANSWERS[name]
    found = [(header.channel, header.recipient, header.content_type, text) for header, text in messages_in(tokens)]
    assert found == expected
    begun = tokens[:1] == tokens_of("<|start|>")
    parser = StreamableParser(harmony.encoding(), None if begun else Role.ASSISTANT, strict=False)
    for token in tokens:
        parser.process(token)
    parser.process_eos()
    texts = ["".join(part.text for part in each.content) for each in parser.messages]
    assert texts == [text for *_, text in expected]
