"""Grammars of text inside a JSON string, checked with the engine's own grammars (xgrammar)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.cases import demo_model
from workers.engine import make_engine
from workers.engine.json_grammar import in_json_string

pytestmark = pytest.mark.vllm

GRAMMARS: list[tuple[str, str, list[str], list[str]]] = [
    ("regex", r'[^a-c]{2,3}\d+"x\\', ['zz12"x\\', '\n"1"x\\'], ['az1"x\\']),
    ("regex", r"(.|\n)*", ["", 'a"b\\c\n\t\x01é👋'], []),
    ("regex", r"[\]\[^-]+", ["]^-["], ["a"]),
    ("regex", r'[\s"]+', [' \t\n"'], ["a"]),
    ("regex", r"\w+@\w+\.com", ["a@b.com"], ["a@b"]),
    ("regex", r"[a-z\\-]+", ["a-\\"], ["A"]),
    ("lark", 'start: (item ("," item)*)?\nitem: /\\d+(\\.\\d+)?/\n%ignore " "\n', ["1,2.5", "1 , 2", ""], ["a"]),
    ("lark", 'start: "say \\"" WORD "\\"\\n"\nWORD: /[^"\\\\]+/\n', ['say "hé"\n'], ['say "\\"\n']),
]


@pytest.fixture(scope="module")
def xgrammar() -> Any:
    make_engine(demo_model())  # imports vLLM in the environment that it needs
    import xgrammar

    return xgrammar


@pytest.fixture(scope="module")
def compiler(xgrammar: Any) -> Any:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(demo_model().path)
    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=1280)
    return xgrammar.GrammarCompiler(info), tokenizer.eos_token_id


def ebnf(xgrammar: Any, syntax: str, definition: str) -> str:
    made = xgrammar.Grammar.from_regex(definition) if syntax == "regex" else xgrammar.Grammar.from_lark(definition)
    return str(made)


def accepts(xgrammar: Any, compiler: Any, grammar: str, text: str) -> bool:
    compile_, end = compiler
    matcher = xgrammar.GrammarMatcher(compile_.compile_grammar(grammar))
    return bool(matcher.accept_string(text) and matcher.accept_token(end))


@pytest.mark.parametrize(("syntax", "definition", "good", "bad"), GRAMMARS)
def test_the_escaped_grammar_accepts_the_same_texts_escaped(
    xgrammar: Any, compiler: Any, syntax: str, definition: str, good: list[str], bad: list[str]
) -> None:
    plain = ebnf(xgrammar, syntax, definition)
    escaped = in_json_string(plain)
    for text in good:
        assert accepts(xgrammar, compiler, plain, text)
        assert accepts(xgrammar, compiler, escaped, json.dumps(text, ensure_ascii=False)[1:-1])
    for text in bad:
        assert not accepts(xgrammar, compiler, plain, text)
        assert not accepts(xgrammar, compiler, escaped, json.dumps(text, ensure_ascii=False)[1:-1])


@settings(max_examples=150, deadline=None)
@given(text=st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=6), data=st.data())
def test_the_escaped_grammar_accepts_only_json_of_accepted_texts(
    xgrammar: Any, compiler: Any, text: str, data: st.DataObject
) -> None:
    syntax, definition, _, _ = data.draw(st.sampled_from(GRAMMARS))
    plain = ebnf(xgrammar, syntax, definition)
    written = json.dumps(text, ensure_ascii=False)[1:-1]
    assert accepts(xgrammar, compiler, in_json_string(plain), written) == accepts(xgrammar, compiler, plain, text)


def test_a_grammar_of_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="tokens"):
        in_json_string('root ::= TagDispatch(("<x>", other))')
