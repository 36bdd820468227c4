"""Every engine's decoder keeps the contract of `workers/engine/output_format.py`."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine.cases import MANY_SCRIPTS, Case

# All examples share the engine that the fixture hands over.
SHARED = (HealthCheck.function_scoped_fixture,)
TEXTS = st.one_of(st.text(max_size=40), st.just(MANY_SCRIPTS), st.text(alphabet="é世👋🏽a\u200d ", max_size=20))


@settings(max_examples=150, deadline=None, suppress_health_check=SHARED)
@given(text=TEXTS, data=st.data())
def test_a_decoder_gives_the_same_text_however_its_tokens_come(case: Case, text: str, data: st.DataObject) -> None:
    tokens = case.encode(text.encode(errors="replace").decode())
    tokens += data.draw(st.lists(st.integers(0, 255), max_size=6))  # for many models these are broken UTF-8
    at_once, one_by_one, split = (case.engine.decoder() for _ in range(3))
    whole = at_once.feed(tokens)
    assert "".join([one_by_one.feed([token]) for token in tokens]) == whole
    cuts = sorted(data.draw(st.lists(st.integers(0, len(tokens)), max_size=5)))
    pieces = [tokens[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(tokens)], strict=True)]
    assert "".join([split.feed(piece) for piece in pieces]) == whole
    assert at_once.flush() == one_by_one.flush() == split.flush()


@settings(max_examples=100, deadline=None, suppress_health_check=SHARED)
@given(text=TEXTS)
def test_a_decoder_never_shows_half_a_character(case: Case, text: str) -> None:
    text = text.encode(errors="replace").decode().replace("\ufffd", "")
    decoder = case.engine.decoder()
    pieces = [decoder.feed([token]) for token in case.encode(text)]
    assert not any("\ufffd" in piece for piece in pieces)
    assert "".join(pieces) + decoder.flush() == text


def test_a_decoder_skips_special_tokens(case: Case) -> None:
    decoder = case.engine.decoder()
    tokens = case.encode("good")
    assert decoder.feed([*case.special, *tokens, *case.special, *tokens]) + decoder.flush() == "goodgood"


def test_a_cut_character_is_held_back_and_flushed_as_a_replacement(case: Case) -> None:
    cut = case.encode("hi 👋")[:-1]
    decoder = case.engine.decoder()
    assert "\ufffd" not in decoder.feed(cut)
    assert "\ufffd" in decoder.flush()


def test_decoders_do_not_share_what_they_hold_back(case: Case) -> None:
    one, other = case.engine.decoder(), case.engine.decoder()
    one.feed(case.encode("👋")[:-1])
    assert other.feed(case.encode("fine")) + other.flush() == "fine"


class ByteTokenizer:
    """A tokenizer as sentencepiece's: characters that it does not know are tokens of single bytes."""

    def __init__(self) -> None:
        from tokenizers import Tokenizer, decoders, models  # comes with vLLM

        words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "hi", "é"]
        self.vocabulary = {word: token_id for token_id, word in enumerate(words)}
        model = models.BPE(vocab=self.vocabulary, merges=[], byte_fallback=True, unk_token="<unk>")
        self.backend_tokenizer = Tokenizer(model)
        self.backend_tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        text: str = self.backend_tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)
        return text


@pytest.mark.vllm
@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("<0xC3> <0xAC> <0xE2> <0xE2> hi", "ì\ufffd\ufffdhi"),
        ("<0xE2> <0xAC> <0xAC> <0xC3> é", "⬬\ufffdé"),
        ("<0xC3> <0xAC> <0xE2>", "ì\ufffd"),
    ],
)
def test_bytes_that_never_become_a_character_are_shown_as_replacements(words: str, text: str) -> None:
    from workers.engine.vllm.decoder import VllmDecoder

    tokenizer = ByteTokenizer()
    decoder = VllmDecoder(tokenizer)
    assert decoder.feed([tokenizer.vocabulary[word] for word in words.split()]) + decoder.flush() == text
