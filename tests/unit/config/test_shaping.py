"""Messages are shaped for templates as strict as real ones: nothing that was sent is lost, doubled or misplaced."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from config.chat_template import ChatTemplate
from config.shaping import proof
from config.shaping.conversations import CONVERSATIONS, Conversation
from config.shaping.proof import AS_IT_IS, Proof, proven
from config.shaping.rendering import renderer
from config.shaping.shape import AS_SENT, GO_ON, INSTRUCTION_HEAD, NOTED, Message, Shaping, ordered, shaped
from tests.support.conversations import misplaced, random_conversations

CALLS = "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}"
SHOW = "<{{ m.role }}>{{ m.content }}" + CALLS
HEAD = "{% if tools %}{{ tools | tojson }}{% endif %}"
EACH = HEAD + "{% for m in messages %}"
END = "{% endfor %}"
HEAD_ALONE = (
    HEAD + "{% if messages[0].role == 'system' %}<system>{{ messages[0].content }}{% set rest = messages[1:] %}"
    "{% else %}{% set rest = messages %}{% endif %}"
)
ALTERNATE = (
    "{% set ns = namespace(n=0) %}{% for m in rest %}"
    "{% if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}"
    "{% if (m.role == 'user') != (ns.n % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% set ns.n = ns.n + 1 %}{% endif %}{% endfor %}"
)
REST = "{% for m in rest %}" + SHOW + END
UNLESS = "{% if {} %}{{ raise_exception('no') }}{% endif %}"
TEMPLATES: dict[str, tuple[str, set[str]]] = {
    "lenient": (EACH + SHOW + END, set()),
    "instructions first, and a user's message somewhere": (
        "{% if not messages | selectattr('role', 'eq', 'user') | list %}{{ raise_exception('no user') }}{% endif %}"
        + EACH
        + UNLESS.replace("{}", "m.role == 'system' and not loop.first", 1)
        + SHOW
        + END,
        {"begun", "moved_later"},
    ),
    "users and assistants in turns": (HEAD_ALONE + ALTERNATE + REST, {"begun", "joined", "noted", "moved_later"}),
    "no instructions at all": (
        HEAD + "{% set rest = messages %}" + ALTERNATE + "{% for m in rest %}"
        "{% if m.role == 'system' %}{{ raise_exception('unknown role') }}{% endif %}" + SHOW + END,
        {"begun", "joined", "noted", "moved_later", "moved_first"},
    ),
    "later instructions are left out": (
        HEAD_ALONE + REST.replace(SHOW, "{% if m.role != 'system' %}" + SHOW + "{% endif %}"),
        {"moved_later"},
    ),
    "the last instructions alone": (
        HEAD
        + "{% set ns = namespace(s='') %}{% for m in messages %}{% if m.role == 'system' %}{% set ns.s = m.content %}"
        "{% endif %}{% endfor %}<system>{{ ns.s }}{% for m in messages if m.role != 'system' %}" + SHOW + END,
        {"moved_later"},
    ),
    "instructions in the last message, if that is a user's": (
        HEAD_ALONE.replace("<system>{{ messages[0].content }}", "{% set said = messages[0].content %}")
        + "{% for m in rest %}<{{ m.role }}>{% if loop.last and m.role == 'user' and said %}{{ said }} {% endif %}"
        + "{{ m.content }}"
        + CALLS
        + END,
        {"moved_first"},
    ),
    "one call in a turn": (
        EACH + UNLESS.replace("{}", "m.tool_calls and m.tool_calls | length > 1", 1) + SHOW + END,
        {"single"},
    ),
    "no text before calls": (
        EACH + "{% if m.tool_calls %}" + CALLS + "{% else %}" + SHOW + "{% endif %}" + END,
        {"apart"},
    ),
    "names of outputs": (EACH + SHOW + "{% if m.role == 'tool' %}{{ m.name + '' }}{% endif %}" + END, {"names"}),
    "thoughts always": (
        EACH + "{% if m.role == 'assistant' %}{{ m.thinking + '' }}{% endif %}" + SHOW + END,
        {"thinking"},
    ),
    "parts alone": (
        HEAD + "{% for m in messages %}<{{ m.role }}>{% if m.role == 'tool' %}{{ m.content }}{% else %}"
        "{% for part in m.content %}{{ part.text + '' }}{% endfor %}{% endif %}" + CALLS + END,
        {"parts"},
    ),
    "short ids": (
        EACH + "{% for c in m.tool_calls or [] %}" + UNLESS.replace("{}", "c.id | length != 9", 1) + END + SHOW + END,
        {"short"},
    ),
    "numbered ids": (
        EACH + "{% for c in m.tool_calls or [] %}{{ c.id.split(':')[1] + '' }}" + END + SHOW + END,
        {"numbered"},
    ),
    "no answer without a text": (
        EACH + UNLESS.replace("{}", "m.role == 'assistant' and not (m.content or m.tool_calls)", 1) + SHOW + END,
        {"worded"},
    ),
    "outputs for all calls": (
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + (m.tool_calls or []) | length %}"
        "{% if m.role == 'tool' %}{% set ns.n = ns.n - 1 %}{% endif %}{% endfor %}"
        + UNLESS.replace("{}", "ns.n > 0", 1)
        + EACH
        + SHOW
        + END,
        {"filled"},
    ),
    "tools beside instructions alone": (
        "{% if messages[0].role == 'system' %}" + HEAD + "{% endif %}{% for m in messages %}" + SHOW + END,
        {"instructed"},
    ),
    "no thoughts": (EACH + UNLESS.replace("{}", "m.reasoning", 1) + SHOW + END, {"thoughtless"}),
}


def shows(text: str) -> Any:
    return renderer(ChatTemplate({"default": text}))


def named(shaping: Shaping) -> set[str]:
    return {name for name in Shaping.__slots__ if getattr(shaping, name)}


@pytest.mark.parametrize("name", TEMPLATES)
def test_each_way_of_shaping_is_found_by_what_a_template_shows_and_then_every_order_is_whole(name: str) -> None:
    text, needed = TEMPLATES[name]
    found = proven(shows(text))
    assert needed <= named(found.shaping)
    assert not found.refused
    for conversation in [*CONVERSATIONS, *random_conversations(random.Random(name), 60)]:
        assert misplaced(shows(text), conversation, found) is None


def test_a_lenient_template_gets_what_was_sent() -> None:
    found = proven(shows(TEMPLATES["lenient"][0]))
    assert found.shaping == AS_SENT and found == Proof(AS_SENT)
    sent = Conversation("ASUUHC").messages
    assert shaped(sent, AS_SENT) == list(sent)


WRONG = {
    "its chat template shows a user's message twice": EACH + SHOW + "{{ m.content }}" + END,
    "its chat template shows a user's message as data, not as text": EACH + "{{ [m.content] }}" + END,
    "its chat template leaves out a user's message": "<s>",
    "its chat template refuses it (ValueError: never)": "{{ raise_exception('never') }}",
}


@pytest.mark.parametrize("reason", WRONG)
def test_a_template_that_shows_no_message_rightly_is_refused_with_its_reason(reason: str) -> None:
    found = proven(shows(WRONG[reason]))
    assert (found.broken, found.refused) == (reason, {"every message": reason})


def test_an_order_that_no_shaping_mends_is_refused_and_so_is_a_longer_one_with_it() -> None:
    template = HEAD + "{% for m in messages if m.role != 'assistant' %}" + SHOW + END
    found = proven(shows(template))
    answered = [{"role": role, "content": role} for role in ("user", "user", "assistant", "user")]
    refusal = found.refusal(answered, has_tools=False)
    assert refusal is not None and refusal.reason == "its chat template leaves out an answer"
    assert found.refusal(answered[:2], has_tools=False) is None
    assert found.no_tools == "its chat template leaves out a call"


@pytest.mark.parametrize(
    "head",
    [
        "",
        "{% if messages[-1].role == 'user' %}" + HEAD + "{% endif %}",
        "{% if not messages | selectattr('tool_calls') | list %}" + HEAD + "{% endif %}",
        "{% if tools %}{{ tools[0] | tojson }}{% endif %}",
    ],
    ids=["never", "before a user's answer", "before calls", "the first one"],
)
def test_tools_that_are_not_shown_are_refused_whatever_is_said(head: str) -> None:
    found = proven(shows(head + "{% for m in messages %}" + SHOW + END))
    assert found.refused == {"tools": "its chat template shows no tools"}
    refusal = found.refusal([{"role": "user", "content": "Hi"}], has_tools=True)
    assert refusal is not None and refusal.of_tools
    assert found.refusal(Conversation("UCAU").messages, has_tools=False) is None


@pytest.mark.parametrize(("role", "order"), [("user", "a user's message"), ("tool", "an output")])
def test_an_empty_message_that_a_template_does_not_take_is_refused_as_such(role: str, order: str) -> None:
    refusing = UNLESS.replace("{}", f"m.role == '{role}' and not m.content", 1)
    found = proven(shows(EACH + refusing + SHOW + END))
    assert found.refused == {f"{order} without text": "its chat template refuses it (ValueError: no)"}


def test_outputs_that_look_like_the_models_own_words_are_refused() -> None:
    as_answers = EACH + "<{{ 'user' if m.role in ('user', 'system') else 'assistant' }}>{{ m.content }}" + CALLS + END
    assert "as the model's own words" in str(proven(shows(as_answers)).no_tools)


def test_a_slow_template_is_given_up_after_its_time_and_what_it_showed_by_then_is_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    rendered: list[int] = []

    def slow(messages: Sequence[Message], tools: Sequence[Any], shaping: Shaping) -> str:
        clock[0] += 5
        rendered.append(len(messages))
        return str(shows(TEMPLATES["lenient"][0])(messages, tools, shaping))

    monkeypatch.setattr(proof.time, "thread_time", lambda: clock[0])
    found = proven(slow)
    assert (rendered, found.broken) == ([1], None)
    hello = [{"role": "user", "content": "Hi"}]
    assert found.refusal(hello, has_tools=False) is None
    assert "took too long" in str(found.no_tools)
    refusal = found.refusal([*hello, {"role": "assistant", "content": "Hi"}, *hello], has_tools=False)
    assert refusal is not None and "took too long" in refusal.reason


def call(*ids: str, text: str = "") -> Message:
    calls = [{"id": id_, "type": "function", "function": {"name": f"f_{id_}", "arguments": "{}"}} for id_ in ids]
    return {"role": "assistant", "content": text, "tool_calls": calls}


def output(id_: str, text: str | None = None) -> Message:
    return {"role": "tool", "tool_call_id": id_, "content": text or f"of {id_}"}


USER: Message = {"role": "user", "content": "u"}
SYSTEM: Message = {"role": "system", "content": "s"}


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ([USER, call("a", "b"), output("b"), output("a")], [USER, call("a", "b"), output("a"), output("b")]),
        ([call("a"), SYSTEM, output("a"), USER], [call("a"), output("a"), SYSTEM, USER]),
        ([call("a", "b"), output("b"), USER, output("a")], [call("a", "b"), output("a"), output("b"), USER]),
        (
            [call("a"), output("a", "1"), call("a"), SYSTEM, output("a", "2")],
            [call("a"), output("a", "1"), call("a"), output("a", "2"), SYSTEM],
        ),
        ([output("a"), call("a")], [output("a"), call("a")]),
        ([SYSTEM, SYSTEM, USER, SYSTEM], [{**SYSTEM, "content": "s\n\ns"}, USER, SYSTEM]),
    ],
)
def test_outputs_stand_behind_their_calls_in_the_order_of_the_calls(
    sent: list[Message], expected: list[Message]
) -> None:
    assert ordered(sent) == expected


def test_what_is_missing_is_said_in_few_words() -> None:
    sent = [call("a"), output("a"), USER, SYSTEM]
    made = shaped(sent, Shaping(begun=True, noted=True, joined=True, moved_later=True))
    texts = [message["content"] for message in made]
    assert texts == [GO_ON, "", "of a", NOTED, f"u\n\n{INSTRUCTION_HEAD}s"]
    assert [message["role"] for message in shaped([SYSTEM], Shaping(begun=True))] == ["system", "user"]


def test_each_call_is_a_turn_with_its_output_and_text_before_calls_a_turn_of_its_own() -> None:
    sent = [USER, call("a", "b", text="t"), output("b"), output("a")]
    made = shaped(sent, Shaping(single=True, apart=True, names=True, short=True))
    assert [message.get("content") for message in made] == ["u", "t", "", "of a", "", "of b"]
    assert [message["name"] for message in made if message["role"] == "tool"] == ["f_a", "f_b"]
    ids = [message["tool_calls"][0]["id"] for message in made if message.get("tool_calls")]
    assert ids == [message["tool_call_id"] for message in made if message["role"] == "tool"]
    assert all(len(id_) == 9 for id_ in ids) and len(set(ids)) == 2


def test_parts_are_kept_when_messages_are_joined() -> None:
    image = [{"type": "image_url", "image_url": {"url": "data:,"}}]
    [joined] = shaped([{"role": "user", "content": image}, USER], Shaping(joined=True))
    assert joined["content"] == [*image, {"type": "text", "text": "u"}]


def test_an_engine_that_shows_whatever_it_is_sent_refuses_nothing() -> None:
    assert AS_IT_IS.refusal(Conversation("AUUSD").messages, has_tools=True) is None
    assert not list(AS_IT_IS.lines())
