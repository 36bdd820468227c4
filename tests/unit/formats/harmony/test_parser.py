"""Harmony's tokens to deltas: a function of the whole token list, whatever it holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai_harmony import Role

from app.protocol.events.deltas import (
    Annotation,
    Approval,
    CallArguments,
    CallCut,
    CallStart,
    CodeStart,
    CodeText,
    CustomInput,
    CustomStart,
    Delta,
    McpArguments,
    McpStart,
    Reasoning,
    Text,
    WholeCall,
)
from app.protocol.hosted_kinds import WEB_SEARCH
from tests.support.deltas import fed
from tests.unit.formats.harmony.cases import DOTTED, RULES, parsed, parser, tokens_of, whole
from workers.engine import harmony_vocabulary as harmony
from workers.formats.answer import AnswerRules, merge_deltas
from workers.formats.calls.client_tools import ClientName
from workers.formats.calls.router import CallableTools
from workers.formats.harmony.parser import HarmonyParser
from workers.formats.harmony.reader import messages_in
from workers.formats.turn import Parsed

NESTED = AnswerRules(
    tools=CallableTools(
        functions=frozenset({"f", "agents__f"}),
        custom=frozenset({"agents__c"}),
        names={"agents__f": ClientName("agents", "f"), "agents__c": ClientName("agents", "c")},
    )
)

ONE = '{"a":1}'
A = "<|channel|>analysis<|message|>"
F = "<|channel|>final<|message|>"
P = "<|channel|>commentary<|message|>"
N = "<|end|><|start|>assistant"


def call(name: str, text: str = "{}") -> str:
    return f"<|channel|>commentary to={name} <|constrain|>json<|message|>{text}"


def answer(text: str) -> Text:
    return Text(text, phase="final_answer")


def preamble(text: str) -> Text:
    return Text(text, phase="commentary")


CITED = Annotation({"type": "url_citation", "start_index": 2, "end_index": 8, "url": "https://x.test/a", "title": "A"})
FOUND = WholeCall(
    WEB_SEARCH, "browser.search", '{"query":"q"}', {"action": {"type": "search", "query": "q", "queries": ["q"]}}
)
OPENED = WholeCall(WEB_SEARCH, "browser.open", '{"id":3}', {"action": {"type": "open_page", "url": None}})

SAID: list[tuple[str, list[Delta]]] = [
    (f"{F}Hello!<|return|>", [answer("Hello!")]),
    (f"{A}Hm 👋.{N}{F}你好 é<|return|>", [Reasoning("Hm 👋."), answer("你好 é")]),
    (f"{A}one{N}{A}two{N}{F}x<|return|>", [Reasoning("one\n\ntwo"), answer("x")]),
    (f"{A}a{N}{call('functions.f', ONE)}<|call|>", [Reasoning("a"), CallStart("f"), CallArguments(ONE)]),
    *((f"{call(f'functions.{name}', ONE)}<|call|>", [CallStart(name), CallArguments(ONE)]) for name in sorted(DOTTED)),
    (f"{call('fs.read_file', ONE)}<|call|>", [CallStart("fs.read_file"), CallArguments(ONE)]),
    (call("functions.c.d", '{"input":"x"}') + "<|call|>", [CustomStart("c.d"), CustomInput("x")]),
    (f"{P}Look:{N}{call('functions.f')}<|call|>", [preamble("Look:"), CallStart("f"), CallArguments("{}")]),
    (f"{P}First.{N}{F}Second.<|return|>", [preamble("First."), answer("Second.")]),
    (
        f"{call('functions.f')}{N} to=functions.g<|channel|>commentary json<|message|>[]<|call|>",
        [CallStart("f"), CallArguments("{}"), CallStart("g"), CallArguments("[]"), CallCut()],
    ),
    (call("functions.c", '{"input":"ls\\n"}') + "<|call|>", [CustomStart("c"), CustomInput("ls\n")]),
    ("<|channel|>commentary to=f json<|message|>{}<|call|>", [CallStart("f"), CallArguments("{}")]),
    ("<|channel|>analysis to=python code<|message|>print({1})<|call|>", [CodeStart("python"), CodeText("print({1})")]),
    (" to=python<|channel|>analysis code<|message|>{}<|call|>", [CodeStart("python"), CodeText("{}")]),
    ('<|channel|>analysis to=browser.search code<|message|>{"query":"q"}<|call|>', [FOUND]),
    (
        f'{A}a{N}<|channel|>analysis to=browser.search<|message|>{{"query":"q"}}{N}'
        '<|channel|>analysis to=browser.open code<|message|>{"id":3}<|call|>',
        [Reasoning("a"), FOUND, OPENED],
    ),
    (f"{call('library.find', '{2}')}<|call|>", [McpStart("library", "find"), McpArguments("{2}")]),
    (f"{call('library.lend')}<|call|>", [Approval("library", "lend", "{}")]),
    ("<|channel|>final <|constrain|>json<|message|>{}<|return|>", [answer("{}")]),
    ("<|channel|>final json<|message|>{}<|return|>", [answer("{}")]),
    # A stop token in another position, or none, changes nothing.
    (f"{F}Hello!<|end|>", [answer("Hello!")]),
    (f"{F}Hello!", [answer("Hello!")]),
    (f"{call('functions.f')}<|return|>", [CallStart("f"), CallArguments("{}")]),
    # Disallowed calls.
    (f"{call('functions.rm', '[1]')}<|call|>", [McpStart("functions", "rm"), McpArguments("[1]")]),
    (f"{call('rm')}<|call|>", [McpStart("rm", "rm"), McpArguments("{}")]),
    (f"{call('library.burn')}<|call|>", [McpStart("library", "burn"), McpArguments("{}")]),
    ("<|channel|>analysis to=container.exec<|message|>ls<|call|>", [McpStart("container", "exec"), McpArguments("ls")]),
    (f"{call('my/box.a.b')}<|call|>", [McpStart("my_box", "a.b"), McpArguments("{}")]),
    # Malformed headers.
    ("Hello there.<|return|>", [answer("Hello there.")]),
    (f"{F}a<|end|>junk{F}b<|return|>", [answer("a\n\nb")]),
    (f"{A}a{F}b<|return|>", [Reasoning("a"), answer("b")]),
    ("<|message|>a<|return|>", [answer("a")]),
    ("<|channel|>finale<|message|>a<|return|>", [answer("a")]),
    ("<|channel|><|message|>a<|return|>", [answer("a")]),
    (
        "<|channel|>commentary to=functions.f to=functions.f json<|message|>{}<|call|>",
        [CallStart("f"), CallArguments("{}")],
    ),
    (
        "<|start|>assistant to=functions.f<|channel|>commentary to=functions.f json<|message|>{}<|call|>",
        [CallStart("f"), CallArguments("{}")],
    ),
    ("<|channel|>analysis to=assistant<|message|>a<|return|>", [Reasoning("a")]),
    (f"{F}a<|end|><|start|>user<|message|>More!<|end|><|start|>assistant{F}b<|return|>", [answer("a\n\nb")]),
    (f"<|start|>functions.f to=assistant<|channel|>commentary<|message|>made up{N}{F}b<|return|>", [answer("b")]),
    ("<|channel|>final and no mark<|return|>", [answer("and no mark")]),
    (f"<|channel|>analysis I must not.{N}{F}No.<|return|>", [Reasoning("I must not."), answer("No.")]),
    ("<|channel|>commentary to=functions.f json<|call|>", []),
    ("<|channel|>comment<|message|>a<|return|>", [Reasoning("a")]),
    ("<|channel|>final and cut", []),
    ("<|channel|>ana", []),
    ("", []),
    # Special tokens are no text.
    (f"{F}a<|constrain|>b<|message|>c<|endoftext|><|return|>", [answer("abc")]),
    # Citations.
    (f"{F}It【1†L3】 is【9†L3】.<|return|>", [answer("It【1†L3】"), CITED, answer(" is【9†L3】.")]),
]
by_sample = pytest.mark.parametrize(("text", "expected"), SAID, ids=[text[:60] for text, _ in SAID])


@by_sample
def test_messages_are_items_by_their_channels_and_recipients(text: str, expected: list[Delta]) -> None:
    assert list(parsed(tokens_of(text)).deltas) == expected


@by_sample
def test_a_cut_answer_is_a_beginning_of_the_whole_answer(text: str, expected: list[Delta]) -> None:
    tokens = tokens_of(text)
    for cut in range(len(tokens)):
        said = parsed(tokens[:cut], cut=True).deltas
        assert len(said) <= len(expected)
        assert said[:-1] == tuple(expected[: max(len(said) - 1, 0)])
        for last, meant in zip(said[-1:], expected[len(said) - 1 :], strict=False):
            assert type(last) is type(meant)
            if hasattr(last, "text"):
                begun = last.text.rstrip("\ufffd")
                assert meant.text.startswith(begun)  # type: ignore[union-attr]
            else:
                assert last == meant


@by_sample
def test_a_parser_that_is_fed_committed_tokens_has_the_state_of_the_first_parser(
    text: str, expected: list[Delta]
) -> None:
    """Settled tokens give the same deltas; unsettled tokens are generated again."""
    tokens = tokens_of(text)
    for cut in range(len(tokens) + 1):
        first = parser()
        before = first.feed(tokens[:cut])
        second = parser()
        again = second.feed(before.tokens)
        assert whole(again).deltas == whole(before).deltas
        after = second.feed(tokens[len(before.tokens) :])
        assert list(whole(before + after + second.flush()).deltas) == expected
        assert (second.tokens, second.calls) == (len(tokens), tuple(parser_after(tokens).calls))


def parser_after(tokens: Sequence[int]) -> HarmonyParser:
    made = parser()
    made.feed(tokens)
    made.flush()
    return made


OVER_THE_END = [("\n\n",), ("eH",), ("thereHello", ".W")]


@pytest.mark.parametrize("stop", [("there",), ("o", "é"), ("Paris", "blue"), *OVER_THE_END])
def test_stop_strings_end_the_answer_wherever_it_is_split(stop: tuple[str, ...]) -> None:
    tokens = tokens_of(f"{A}Hé there{N}{F}Hello there.<|end|><|start|>assistant{F}World.<|return|>")
    rules = replace(RULES, stop=stop)
    expected = parsed(tokens, rules)
    assert expected.deltas[0] == Reasoning("Hé there")  # stops are for the answer
    joined = "".join(delta.text for delta in expected.deltas if isinstance(delta, Text))
    plain = "Hello there.\n\nWorld."
    assert joined == (min((plain.split(each)[0] for each in stop), key=len) if stop not in OVER_THE_END else plain)
    for cut in range(len(tokens) + 1):
        first = parser(rules)
        before = first.feed(tokens[:cut])
        second = parser(rules)
        assert second.feed(before.tokens).deltas == before.deltas
        after = second.feed(tokens[len(before.tokens) :])
        assert whole(before + after + second.flush()).deltas == expected.deltas


def test_a_stop_string_may_be_kept_and_min_tokens_delay_it() -> None:
    tokens = tokens_of(f"{F}one two one two<|return|>")
    assert parsed(tokens, replace(RULES, stop=("two",), keep_stop=True)).deltas == (answer("one two"),)
    assert parsed(tokens, replace(RULES, stop=("two",), min_tokens=6)).deltas == (answer("one two one "),)


def test_after_a_stop_string_no_calls_are_run() -> None:
    made = parser(replace(RULES, stop=("x)",)))
    said = made.feed(tokens_of("<|channel|>analysis to=python code<|message|>print(x)<|call|>"))
    assert made.ended
    assert whole(said + made.flush()).deltas == (CodeStart("python"), CodeText("print("))
    assert made.calls == ()


def test_a_second_call_ends_an_answer_that_may_have_one() -> None:
    made = parser(replace(RULES, tools=replace(RULES.tools, single=True)))
    said = made.feed(tokens_of(f"{call('functions.f')}{N}{call('functions.g')}<|call|>"))
    assert made.ended
    assert whole(said + made.flush()).deltas == (CallStart("f"), CallArguments("{}"))


def test_a_stop_token_of_the_request_is_no_text() -> None:
    [token] = tokens_of(" there")
    made = parser(end_tokens=frozenset({token}))
    said = made.feed(tokens_of(f"{F}Hello there"))
    assert whole(said + made.flush()) == Parsed((answer("Hello"),), tuple(tokens_of(f"{F}Hello there")))


def test_hosted_calls_are_listed_in_order_once_they_are_complete() -> None:
    tokens = tokens_of(
        f"<|channel|>analysis to=python code<|message|>1{N}{call('library.find', '{}')}{N}{call('functions.f')}<|call|>"
    )
    made = parser()
    told = []
    for token in tokens:
        made.feed([token])
        told.append([(each.name, each.arguments) for each in made.calls])
    assert told[-1] == [("python", "1"), ("library.find", "{}")]
    assert sorted(told, key=len) == told
    assert parser_after(tokens_of("<|channel|>analysis to=python code<|message|>print(1")).calls


def test_reasoning_tokens_count_the_analysis_channel() -> None:
    made = parser_after(tokens_of(f"{A}one two three{N}{F}four five<|return|>"))
    assert made.reasoning_tokens == 3
    assert made.tokens == len(tokens_of(f"{A}one two three{N}{F}four five<|return|>"))


MARKS = [
    harmony.special(mark) for mark in ("<|start|>", "<|end|>", "<|channel|>", "<|message|>", "<|call|>", "<|return|>")
]
WORDS = tokens_of("assistant final analysis commentary to=functions.f to=python to=library.lend json code user 👋 é")
tokens = st.lists(st.one_of(st.sampled_from(MARKS), st.sampled_from(WORDS), st.integers(0, 201087)), max_size=40)
cuts = st.lists(st.integers(0, 40), max_size=4)


@settings(max_examples=150, deadline=None)
@given(tokens=tokens, cuts=cuts, cut=st.booleans(), stop=st.sampled_from([(), ("a",), ("an", " to"), ("\ufffd",)]))
def test_any_tokens_are_parsed_without_error_in_any_batches(
    tokens: list[int], cuts: list[int], cut: bool, stop: tuple[str, ...]
) -> None:
    rules = replace(RULES, stop=stop)
    made, alone = parser(rules), parser(rules)
    places = [0, *sorted(min(place, len(tokens)) for place in cuts), len(tokens)]
    said = Parsed()
    for first, last in pairwise(places):
        said += made.feed(tokens[first:last])
    said = whole(said + made.flush(cut=cut))
    singly = Parsed()
    for token in tokens:
        singly += alone.feed([token])
    assert whole(singly + alone.flush(cut=cut)) == said
    assert list(said.tokens) == tokens[: made.tokens]
    assert (made.calls, made.reasoning_tokens) == (alone.calls, alone.reasoning_tokens)
    fed(*said.deltas)  # any deltas are legal


channels = st.sampled_from(["analysis", "commentary", "final"])
recipients = st.sampled_from([None, "functions.f", "python", "library.find", "nobody"])
kinds = st.sampled_from([None, "json", "code", "<|constrain|>json"])
words = st.lists(st.one_of(st.sampled_from(WORDS), st.integers(0, 199997)), max_size=12)


@st.composite
def headers(draw: st.DrawFn) -> str:
    """Messages as gpt-oss writes them, with the recipient in either position."""
    channel, recipient, kind = draw(channels), draw(recipients), draw(kinds)
    to = f" to={recipient}" if recipient else ""
    kind = f" {kind}" if kind else ""
    first = draw(st.booleans())
    return f"{to if first else ''}<|channel|>{channel}{'' if first else to}{kind}<|message|>"


@settings(max_examples=60, deadline=None)
@given(said=st.lists(st.tuples(headers(), words), min_size=1, max_size=4))
def test_well_formed_messages_are_parsed_as_by_the_library(said: list[tuple[str, list[int]]]) -> None:
    between = tokens_of("<|end|><|start|>assistant")
    written = [[*tokens_of(header), *text] for header, text in said]
    tokens = [token for message in written for token in (*message, *between)][: -len(between)]
    tokens.append(harmony.special("<|call|>"))
    messages = harmony.encoding().parse_messages_from_completion_tokens(tokens, Role.ASSISTANT)
    mine = messages_in(tokens)
    assert [text for _, text in mine] == ["".join(part.text for part in message.content) for message in messages]
    assert [header.channel for header, _ in mine] == [message.channel for message in messages]
    for (header, _), message, (written_header, _) in zip(mine, messages, said, strict=True):
        addressed = "to=" in written_header
        assert header.recipient == (message.recipient.split("<|")[0].strip() if addressed else None)
        assert "json" not in written_header or "json" in (header.content_type or "")


def test_calls_of_tools_in_a_namespace_have_both_names() -> None:
    for prefix in ("", "functions."):
        for name, arguments, deltas in (
            ("agents__f", "{}", (CallStart("f", "agents"), CallArguments("{}"))),
            ("agents__c", '{"input": "x"}', (CustomStart("c", "agents"), CustomInput("x"))),
            ("f", "{}", (CallStart("f"), CallArguments("{}"))),
        ):
            made = HarmonyParser(NESTED)
            said = made.feed(tokens_of(f"{call(prefix + name, arguments)}<|call|>")) + made.flush()
            assert merge_deltas(said.deltas) == deltas
