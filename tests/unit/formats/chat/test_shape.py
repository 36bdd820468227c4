"""Messages are shaped for templates as strict as real ones: nothing that was sent is refused or left out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import Environment

from workers.engine.base import Message
from workers.engine.template_rules import ANY_ORDER, TemplateRules, rules_of
from workers.formats.chat.shape import GO_ON, INSTRUCTION_HEAD, NOTED, shaped

RAISE_UNLESS_FIRST = (
    "{% if m.role == 'system' and not loop.first %}{{ refuse('system message must be at the beginning') }}{% endif %}"
)
SHOW = "<{{ m.role }}>{{ m.content }}"
EACH = "{% for m in messages %}"
END = "{% endfor %}"
HEAD_ALONE = (
    "{% if messages[0].role == 'system' %}<system>{{ messages[0].content }}{% set rest = messages[1:] %}"
    "{% else %}{% set rest = messages %}{% endif %}"
)
ALTERNATE = (
    "{% set ns = namespace(n=0) %}{% for m in rest %}"
    "{% if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}"
    "{% if (m.role == 'user') != (ns.n % 2 == 0) %}{{ refuse('roles must alternate') }}{% endif %}"
    "{% set ns.n = ns.n + 1 %}{% endif %}{% endfor %}"
)
REST = "{% for m in rest %}" + SHOW + END
TEMPLATES = {
    "lenient": EACH + SHOW + END,
    "instructions first, and a user's message somewhere": (
        "{% if not messages | selectattr('role', 'eq', 'user') | list %}{{ refuse('no user') }}{% endif %}"
        f"{EACH}{RAISE_UNLESS_FIRST}{SHOW}{END}"
    ),
    "users and assistants in turns": HEAD_ALONE + ALTERNATE + REST,
    "no instructions at all": (
        "{% if messages[0].role == 'system' %}{{ refuse('no system role') }}{% endif %}"
        "{% set rest = messages %}" + ALTERNATE + "{% for m in rest %}{% if m.role == 'system' %}"
        "{{ refuse('unknown role') }}{% endif %}" + SHOW + END
    ),
    "later instructions are left out": HEAD_ALONE
    + REST.replace(SHOW, "{% if m.role != 'system' %}" + SHOW + "{% endif %}"),
}


class Refused(Exception):
    pass


def refuse(reason: str) -> str:
    raise Refused(reason)


ENVIRONMENT = Environment()


def show(template: str, messages: Sequence[Message]) -> str:
    return ENVIRONMENT.from_string(template).render(messages=messages, refuse=refuse)


@cache
def rules(name: str) -> TemplateRules:
    return rules_of(lambda messages: show(TEMPLATES[name], messages))


def conversation(*roles: str) -> list[Message]:
    return [
        {"role": role, "content": f"text{index}."}
        if role != "call"
        else {"role": "assistant", "content": f"text{index}.", "tool_calls": [{"id": "c"}]}
        for index, role in enumerate(roles)
    ]


def test_a_lenient_template_gets_what_was_sent_and_so_does_one_that_shows_nothing() -> None:
    assert rules("lenient") == ANY_ORDER == rules_of(lambda _messages: refuse("always"))
    sent = conversation("assistant", "system", "user", "user")
    assert shaped(sent, ANY_ORDER) == sent


def test_each_rule_is_found_by_what_the_template_refuses_or_leaves_out() -> None:
    assert rules("instructions first, and a user's message somewhere") == TemplateRules(
        later_system=False, no_user_first=False
    )
    in_turns = TemplateRules(later_system=True, no_user_first=False, users_in_a_row=False, user_after_tool=False)
    assert rules("users and assistants in turns") == in_turns
    assert not rules("no instructions at all").system
    assert rules("later instructions are left out") == TemplateRules(later_system=False)


ROLES = st.lists(st.sampled_from(["user", "assistant", "system"]), min_size=1, max_size=8)
CALLS = st.lists(st.sampled_from([("user",), ("system",), ("call", "tool")]), min_size=1, max_size=6)


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=40)
@given(roles=st.one_of(ROLES, CALLS.map(lambda parts: [role for part in parts for role in part])))
def test_every_conversation_is_shown_whole(name: str, roles: list[str]) -> None:
    sent = conversation(*_as_built(roles))
    text = show(TEMPLATES[name], shaped(sent, rules(name)))
    places = [text.index(message["content"]) for message in sent]
    assert places == sorted(places)


def _as_built(roles: Sequence[str]) -> list[str]:
    """As `messages_of` builds them: assistants in a row are one message, and so are instructions at the head."""
    made: list[str] = []
    for role in roles:
        is_joined = made and role == made[-1] and (role == "assistant" or (role == "system" and len(made) == 1))
        if not is_joined:
            made.append(role)
    return made


def test_an_instruction_between_turns_becomes_a_marked_message_of_the_user() -> None:
    strict = TemplateRules(later_system=False, users_in_a_row=False)
    sent = conversation("system", "user", "system")
    content = f"text1.\n\n{INSTRUCTION_HEAD}text2."
    assert shaped(sent, strict) == [sent[0], {"role": "user", "content": content}]


def test_parts_are_kept_when_messages_are_joined() -> None:
    image = [{"type": "image_url", "image_url": {"url": "data:,"}}]
    sent = [{"role": "user", "content": image}, {"role": "user", "content": "what is it?"}]
    [joined] = shaped(sent, TemplateRules(users_in_a_row=False))
    assert joined["content"] == [*image, {"type": "text", "text": "what is it?"}]


def test_what_is_missing_is_said_in_few_words() -> None:
    strict = TemplateRules(no_user_first=False, user_after_tool=False)
    texts = [message["content"] for message in shaped(conversation("call", "tool", "user"), strict)]
    assert texts == [GO_ON, "text0.", "text1.", NOTED, "text2."]
    assert [message["role"] for message in shaped(conversation("system"), strict)] == ["system", "user"]
