"""Chat models: one response's token ids -> what the model said.

Every token goes through alone, so that nothing depends on how tokens were batched:

    token -> decoder -> stop strings -> the model's own markup (engine) -> calls -> trim -> citations -> deltas

Where nothing on that way could tell, as with most tokens of most answers, the text of several goes as one.

A token is settled, and may be committed, with the first delta that comes out with it or behind it: what
was held back at a crash is generated again, and says what it would have said.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from app.protocol.events.deltas import CallArguments, CodeText, CustomInput, Delta, McpArguments, Reasoning, Text
from workers.engine.output_format import Json, OutputFormat
from workers.formats.calls.hosted import HostedCall, HostedTools
from workers.formats.calls.router import CallRouter
from workers.formats.chat.logprobs import LogprobMatcher
from workers.formats.chat.trim import Trim
from workers.formats.citations import Citations, Sources
from workers.formats.stops import Piece, StopStrings, Token, TokenKind
from workers.formats.turn import Parsed

_PIECES = (Reasoning, CallArguments, CustomInput, CodeText, McpArguments)
"""What neighbours are made one of."""
_NOTHING = Parsed()


@dataclass(frozen=True, slots=True)
class AnswerRules:
    """What a request says of its answer beside the form."""

    stop: tuple[str, ...] = ()
    keep_stop: bool = False
    """The stop string is part of the text."""
    min_tokens: int = 0
    """A stop string must begin behind these."""
    functions: frozenset[str] = frozenset()
    custom: frozenset[str] = frozenset()
    hosted: HostedTools = field(default_factory=dict)
    single_call: bool = False
    sources: Sources = field(default_factory=dict)
    """What may be cited."""


class ChatParser:
    """See `workers.formats.turn.Parser`."""

    def __init__(self, output_format: OutputFormat, prompt: Sequence[int], rules: AnswerRules) -> None:
        self._format = output_format
        self._decoder = output_format.decoder()
        self._stops = StopStrings(rules.stop, keep=rules.keep_stop)
        self._parser = output_format.parser(prompt)
        self._calls = CallRouter(rules.functions, rules.custom, rules.hosted, single=rules.single_call)
        self._trim = Trim()
        self._citations = Citations(rules.sources)
        self._min_tokens = rules.min_tokens
        self._looked_at = bool(rules.stop or rules.sources)
        """Its text is, token by token."""
        self._logprobs = LogprobMatcher()
        self._unsettled: list[int] = []
        self._ready: list[Delta] = []
        """What they said that waits for stop strings: with half of a token's text held back, the token could not be
        committed, and without it the other half would be said again."""
        self._undecided = 0
        """Tokens since the markup last said something."""
        self.tokens = 0
        self.reasoning_tokens = 0

    @property
    def ended(self) -> bool:
        return self._stops.found or self._calls.ended

    @property
    def calls(self) -> Sequence[HostedCall]:
        """None where a stop string ended the answer: nobody is to go on."""
        return () if self._stops.found else tuple(self._calls.hosted)

    def feed(self, token_ids: Sequence[int], logprobs: Sequence[Json] = ()) -> Parsed:
        if not logprobs and self._is_plain(token_ids):
            return self._plain(token_ids)
        said: list[Delta] = []
        settled: list[int] = []
        for place, token in enumerate(token_ids):
            if self.ended:
                break
            self._ready += self._citations.feed(self._step(token, logprobs[place] if logprobs else None))
            if self._ready and (self.ended or not self._stops.holds):
                said, self._ready = said + self._ready, []
                settled, self._unsettled = settled + self._unsettled, []
        return Parsed(merge_deltas(said), tuple(settled))

    def flush(self, *, cut: bool = False) -> Parsed:
        said: list[Delta] = []
        if not self.ended:
            said += self._say(self._stops.feed(Piece(self._decoder.flush())))
            said += self._say(self._stops.flush())
        if not self._calls.ended:
            said += self._understood(self._parser.flush(cut=cut or self._stops.found))
            said += self._trim.feed(self._calls.flush(cut=cut or self._stops.found))
            said += self._trim.flush()
        said, self._ready = self._ready + self._citations.feed(said), []
        settled, self._unsettled = tuple(self._unsettled), []
        return Parsed(merge_deltas(said), settled)

    def _is_plain(self, token_ids: Sequence[int]) -> bool:
        special = self._looked_at or self.ended or not self._parser.plain
        return not special and self._format.markers.isdisjoint(token_ids)

    def _plain(self, token_ids: Sequence[int]) -> Parsed:
        """`feed` of tokens that are text and nothing else."""
        texts: list[str] = []
        end_tokens = self._format.end_tokens
        with_text = 0
        for place, token in enumerate(token_ids):
            if token not in end_tokens and (text := self._decoder.feed((token,))):
                texts.append(text)
                with_text = place + 1
        self.tokens += len(token_ids)
        self._undecided += with_text
        said = self._understood([Text("".join(texts))]) if texts else []
        self._undecided += sum(token not in end_tokens for token in token_ids[with_text:])
        if not said:
            self._unsettled += token_ids
            return _NOTHING
        settled = (*self._unsettled, *token_ids[:with_text])
        self._unsettled = list(token_ids[with_text:])
        return Parsed(merge_deltas(said), settled)

    def _step(self, token_id: int, logprob: Json | None) -> list[Delta]:
        self.tokens += 1
        self._unsettled.append(token_id)
        token = self._token(token_id, logprob)
        return self._say(self._stops.feed(Piece(token.text, token), exempt=self.tokens <= self._min_tokens))

    def _token(self, token_id: int, logprob: Json | None) -> Token:
        if token_id in self._format.end_tokens:
            return Token(token_id, TokenKind.END)
        kind = TokenKind.MARKER if token_id in self._format.markers else TokenKind.TEXT
        return Token(token_id, kind, self._decoder.feed([token_id]), logprob)

    def _say(self, pieces: Iterable[Piece]) -> list[Delta]:
        return [delta for piece in pieces for delta in self._piece(piece)]

    def _piece(self, piece: Piece) -> list[Delta]:
        token = piece.token
        if token is not None:
            if token.kind is TokenKind.END:
                return []
            self._undecided += 1
            if token.logprob is not None and token.kind is TokenKind.TEXT:
                self._logprobs.add(token.text, token.logprob)
        return self._understood(self._parser.feed(piece.text, [token.id] if token else []))

    def _understood(self, deltas: list[Delta]) -> list[Delta]:
        if any(isinstance(delta, Reasoning) for delta in deltas):
            self.reasoning_tokens += self._undecided
        if deltas:
            self._undecided = 0
        return self._trim.feed(self._with_logprobs(self._calls.feed(deltas)))

    def _with_logprobs(self, deltas: list[Delta]) -> list[Delta]:
        said: list[Delta] = []
        for delta in deltas:
            if isinstance(delta, Text):
                said.append(Text(delta.text, self._logprobs.take(delta.text)))
            else:
                self._logprobs.drop()
                said.append(delta)
        return said


def merge_deltas(deltas: Iterable[Delta]) -> tuple[Delta, ...]:
    """The same with neighbours of a kind made one."""
    said: list[Delta] = []
    for delta in deltas:
        last = said[-1] if said else None
        if isinstance(delta, Text) and isinstance(last, Text) and delta.phase == last.phase:
            said[-1] = replace(last, text=last.text + delta.text, logprobs=last.logprobs + delta.logprobs)
        elif isinstance(delta, _PIECES) and type(delta) is type(last):
            said[-1] = replace(delta, text=last.text + delta.text)
        else:
            said.append(delta)
    return tuple(said)
