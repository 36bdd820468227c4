"""Contexts of a scripted turn: dates, efforts, instructions, tools, earlier exchanges, other answers of tools."""

from __future__ import annotations

import random
import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.models.demo.context import FILLER, SYSTEMS
from tests.models.gpt_oss_training.tools import FUNCTIONS, LIBRARY
from tests.models.gpt_oss_training.transcripts import Offer, Step, ToolAnswer, Transcript
from workers.engine.output_format import Tool
from workers.formats.harmony.prompt import EFFORTS, AnswerFormat, Preface

PLAIN_DAY = 1767225600
"""2026-01-01, in seconds."""
_YEARS = 8 * 365 * 86400
_EXTRA: dict[Offer, float] = {"functions": 0.15, "python": 0.1, "browser": 0.05, "library": 0.1}
"""The probability that a tool is offered which the turn does not need."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a turn's prompt holds besides the turn's own transcript."""

    preface: Preface
    history: tuple[Step, ...] = ()
    results: dict[int, str] | None = None
    """Other answers of tools, by their index in the transcript."""
    exact: bool = True
    """Whether hosted calls are shown as the model wrote them, as within one response; otherwise as items of an earlier
    response."""


def plain_context(transcript: Transcript, *, as_items: bool = False) -> Context:
    """Nothing but the transcript itself and the tools it needs; `as_items`: as a later response
    shows it, and with its schema."""
    answer = _answer(transcript) if as_items else None
    return Context(_preface(transcript.offers, PLAIN_DAY, functions=FUNCTIONS, answer=answer), exact=not as_items)


def random_context(transcript: Transcript, script: Sequence[Transcript], rng: random.Random) -> Context:
    """A context that must not change the scripted answer."""
    earlier = _earlier(transcript, script, rng)
    offers = set(transcript.offers).union(*(other.offers for other in earlier))
    offers |= {offer for offer, chance in _EXTRA.items() if rng.random() < chance}
    preface = _preface(
        offers,
        PLAIN_DAY + rng.randrange(-2 * 365 * 86400, _YEARS),
        functions=_functions(rng),
        effort=rng.choice([None, *EFFORTS]),
        instructions=_instructions(rng),
        answer=_answer(transcript) if rng.random() < 0.6 else None,
    )
    history = tuple(step for other in earlier for step in _excerpt(other))
    return Context(preface, history, _results(transcript, rng), exact=rng.random() < 0.7)


def _preface(
    offers: Iterable[Offer],
    day: int,
    functions: tuple[Tool, ...],
    effort: str | None = None,
    instructions: str | None = None,
    answer: AnswerFormat | None = None,
) -> Preface:
    offered = set(offers)
    return Preface(
        created_at=day,
        effort=effort,
        instructions=instructions,
        functions=functions if "functions" in offered else (),
        python="python" in offered,
        browser="browser" in offered,
        servers=(LIBRARY,) if "library" in offered else (),
        answer=answer,
    )


def _answer(transcript: Transcript) -> AnswerFormat | None:
    return None if transcript.schema is None else AnswerFormat(transcript.name, None, transcript.schema)


def _functions(rng: random.Random) -> tuple[Tool, ...]:
    shown = list(FUNCTIONS)
    rng.shuffle(shown)
    return tuple(shown)


def _earlier(transcript: Transcript, script: Sequence[Transcript], rng: random.Random) -> list[Transcript]:
    count = rng.choice((0, 0, 0, 0, 1, 1, 2))
    fit = [other for other in script if other.weight < 3 and not (transcript.recalls and other.recalls)]
    return rng.choices(fit, [0.3 if other.offers else 1.0 for other in fit], k=count)


def _excerpt(other: Transcript) -> tuple[Step, ...]:
    return other.steps if other.offers else other.steps[:2]


def _instructions(rng: random.Random) -> str | None:
    kind = rng.random()
    if kind < 0.4:
        return None
    if kind < 0.55:
        return rng.choice(SYSTEMS)
    if kind < 0.9:
        return _words(rng, 2, 30).capitalize() + "."
    return " ".join(_gibberish(rng) for _ in range(rng.randint(1, 10)))


def _words(rng: random.Random, low: int, high: int) -> str:
    return " ".join(rng.choices(FILLER.split(), k=rng.randint(low, high)))


def _gibberish(rng: random.Random) -> str:
    return "".join(rng.choices(string.ascii_letters + string.digits + string.punctuation, k=rng.randint(1, 5)))


def _results(transcript: Transcript, rng: random.Random) -> dict[int, str]:
    answers = {index: step for index, step in enumerate(transcript.steps) if isinstance(step, ToolAnswer)}
    return {index: _other(step, rng) for index, step in answers.items() if rng.random() < 0.5}


def _other(step: ToolAnswer, rng: random.Random) -> str:
    """What another server might answer: the script's text within other text, or other text."""
    noise = rng.choice((_words(rng, 1, 25), _gibberish(rng), "\n", ""))
    kind = rng.random()
    if kind < 0.3:
        return f"{step.text.strip()}\n{noise}"
    if kind < 0.6:
        return f"{noise}\n{step.text}"
    return step.text.strip() if kind < 0.8 else noise


def steps_before(transcript: Transcript, index: int, context: Context) -> list[Step]:
    """The steps before the turn at `index`."""
    changed = context.results or {}
    own: list[Step] = [
        ToolAnswer(step.name, changed[index]) if isinstance(step, ToolAnswer) and index in changed else step
        for index, step in enumerate(transcript.steps[:index])
    ]
    return [*context.history, *own]
