"""Chat models: one answer's token ids to deltas.

Tokens are read one by one, so the result does not depend on how they were batched:

    token -> decoder -> the model's output parser (engine) -> stop strings -> calls -> trim -> citations -> deltas

Most tokens of most answers are plain text that no step could treat otherwise; the text of several goes through as one.

A token is settled, and may be committed, with the first delta that comes out with it or after it. What was held back at
a crash is generated again, with the same result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from app.protocol.events.deltas import CallArguments, Delta, Reasoning, Text
from app.protocol.types import Json
from workers.engine.output_format import OutputFormat
from workers.formats.answer import AnswerParser, AnswerRules, merge_deltas
from workers.formats.calls.router import CallRouter
from workers.formats.chat.trim import Trim
from workers.formats.turn import Parsed

_NOTHING = Parsed()


class ChatParser(AnswerParser):
    """See `workers.formats.turn.TurnParser`."""

    def __init__(self, output_format: OutputFormat, prompt: Sequence[int], rules: AnswerRules) -> None:
        super().__init__(rules, CallRouter)
        self._format = output_format
        self._decoder = output_format.decoder()
        self._parser = output_format.parser(prompt)
        self._trim = Trim()
        self._logprobs = LogprobMatcher()
        self._always_token_by_token = bool(rules.stop or rules.sources)
        self._stopping: type[Text | CallArguments] = Text
        """The kind of text that stop strings hold back."""
        self._behind_thoughts = False
        """Only line feeds came behind the thoughts."""
        self._ready: list[Delta] = []
        """Deltas that wait for stop strings. While part of a token's text is held back, the token cannot be committed;
        without the token, a crash would repeat the part that came out."""
        self._undecided = 0
        """Tokens since the output parser last returned a delta."""

    def feed(self, token_ids: Sequence[int], logprobs: Sequence[Json] = ()) -> Parsed:
        if not logprobs and self._is_plain(token_ids):
            return self._feed_plain(token_ids)
        deltas: list[Delta] = []
        settled: list[int] = []
        for index, token in enumerate(token_ids):
            if self.ended:
                break
            self._ready += self._citations.feed(self._feed_token(token, logprobs[index] if logprobs else None))
            if self._ready and (self.ended or not self._stops.holds):
                deltas, self._ready = deltas + self._ready, []
                settled += self._settle()
        return Parsed(merge_deltas(deltas), tuple(settled))

    def flush(self, *, cut: bool = False) -> Parsed:
        deltas: list[Delta] = []
        if not self.ended:
            deltas += self._pass_on(self._parser.feed(self._decoder.flush(), []))
        if not self._calls.ended:
            deltas += self._pass_on(self._parser.flush(cut=cut or self._stops.found))
            deltas += self._route(self._unstopped())
            deltas += self._trim.feed(self._calls.flush(cut=cut, stopped=self._stops.found))
            deltas += self._trim.flush()
        deltas, self._ready = self._ready + self._citations.feed(deltas), []
        return Parsed(merge_deltas(deltas), tuple(self._settle()))

    def _is_plain(self, token_ids: Sequence[int]) -> bool:
        token_by_token = self._always_token_by_token or self.ended or not self._parser.plain
        return not token_by_token and self._format.markers.isdisjoint(token_ids)

    def _feed_plain(self, token_ids: Sequence[int]) -> Parsed:
        """`feed` for tokens that are plain text."""
        texts: list[str] = []
        end_tokens = self._format.end_tokens
        with_text = 0
        for index, token in enumerate(token_ids):
            if token not in end_tokens and (text := self._decoder.feed((token,))):
                texts.append(text)
                with_text = index + 1
        self.tokens += len(token_ids)
        self._undecided += with_text
        deltas = self._pass_on([Text("".join(texts))]) if texts else []
        self._undecided += sum(token not in end_tokens for token in token_ids[with_text:])
        if not deltas:
            self._unsettled += token_ids
            return _NOTHING
        settled = (*self._unsettled, *token_ids[:with_text])
        self._unsettled = list(token_ids[with_text:])
        return Parsed(merge_deltas(deltas), settled)

    def _feed_token(self, token: int, logprob: Json | None) -> list[Delta]:
        self.tokens += 1
        self._unsettled.append(token)
        if token in self._format.end_tokens:
            return []
        self._undecided += 1
        text = self._decoder.feed([token])
        if logprob is not None and token not in self._format.markers:
            self._logprobs.add(text, logprob)
        return self._pass_on(self._parser.feed(text, [token]))

    def _pass_on(self, deltas: list[Delta]) -> list[Delta]:
        """Returns the deltas that come of those of the output parser."""
        if any(isinstance(delta, Reasoning) for delta in deltas):
            self.reasoning_tokens += self._undecided
        if deltas:
            self._undecided = 0
        return self._route([kept for delta in deltas for kept in self._until_stop(delta)])

    def _until_stop(self, delta: Delta) -> list[Delta]:
        """What is certain of a delta and of the text before it."""
        if self._stops.found:
            return []
        if not isinstance(delta, Text | CallArguments):
            self._behind_thoughts = isinstance(delta, Reasoning)
            return [*self._unstopped(), delta]
        before = [] if isinstance(delta, self._stopping) else self._unstopped()
        self._stopping = type(delta)
        text = delta.text.lstrip("\n") if self._behind_thoughts else delta.text
        line_feeds = delta.text[: len(delta.text) - len(text)]
        self._behind_thoughts = self._behind_thoughts and not text
        certain = line_feeds + self._stops.feed(text, exempt=self.tokens <= self._min_tokens)
        return [*before, replace(delta, text=certain)] if certain else before

    def _unstopped(self) -> list[Delta]:
        """The text that was held back, and is part of no stop string."""
        held = self._stops.flush()
        return [self._stopping(held)] if held else []

    def _route(self, deltas: list[Delta]) -> list[Delta]:
        return self._trim.feed(self._with_logprobs(self._calls.feed(deltas)))

    def _with_logprobs(self, deltas: list[Delta]) -> list[Delta]:
        found: list[Delta] = []
        for delta in deltas:
            if isinstance(delta, Text):
                found.append(Text(delta.text, self._logprobs.take(delta.text)))
            else:
                self._logprobs.drop()
                found.append(delta)
        return found


class LogprobMatcher:
    """The tokens whose text the output parser has not returned yet."""

    def __init__(self) -> None:
        self._open: list[tuple[str, Json]] = []

    def add(self, text: str, logprob: Json) -> None:
        """A token whose text the parser got."""
        self._open.append((text, logprob))

    def drop(self) -> None:
        """Forgets the tokens so far: they were no text."""
        self._open.clear()

    def take(self, text: str) -> tuple[Json, ...]:
        """The log probabilities of the tokens of `text`. Earlier tokens were markers; later ones are kept."""
        whole = "".join(part for part, _ in self._open)
        start = max(whole.find(text), 0)
        end, position = start + len(text), 0
        taken, left = [], []
        for part, logprob in self._open:
            if position >= end:
                left.append((part, logprob))
            elif position >= start or position + len(part) > start:
                taken.append(logprob)
            position += len(part)
        self._open = left
        return tuple(taken)
