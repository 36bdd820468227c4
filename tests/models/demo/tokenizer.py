"""The demo model's tokenizer: byte-level BPE over the script, so that a common word is one token."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from tests.models.demo.context import FILLER, SYSTEMS
from tests.models.demo.conversation import Conversation, compact, completion
from tests.models.demo.tools import TOOLS

TEMPLATE = Path(__file__).with_name("template.jinja")
MAX_MERGED = 1500
"""An upper bound of the vocabulary without the added tokens; the script uses fewer."""
START, END, PAD = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
"""Single tokens that are not special (as in Qwen3): decoding keeps them for the parsers."""

# Words with their blank, single digits, punctuation, line ends.
PIECES = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s+"


def _corpus(script: Iterable[Conversation]) -> Iterator[str]:
    yield from (compact(tool) for tool in TOOLS)
    yield from SYSTEMS
    yield FILLER
    for conversation in script:
        for message in conversation.messages:
            scripted = message["role"] == "assistant"
            text = completion(message, thinking=True) if scripted else message["content"]
            if text.isascii():  # other letters stay bytes, so that streams have characters across tokens
                yield text


def _train(texts: Iterable[str]) -> Tokenizer:
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(PIECES), behavior="isolated"), bytes_]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=MAX_MERGED, initial_alphabet=alphabet, show_progress=False)
    )
    tokenizer.add_special_tokens([PAD, START, END])
    tokenizer.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in MARKS])
    return tokenizer


def build_tokenizer(script: Sequence[Conversation], context_length: int) -> Any:
    """A transformers tokenizer with the chat template; `context_length` in tokens."""
    return PreTrainedTokenizerFast(
        tokenizer_object=_train(_corpus(script)),
        eos_token=END,
        pad_token=PAD,
        clean_up_tokenization_spaces=False,
        model_max_length=context_length,
        chat_template=TEMPLATE.read_text(encoding="utf-8").strip(),
    )
