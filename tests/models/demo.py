"""Trains `config/demo`, a tiny chat model that knows `config/demo/script.json` by heart and nothing else.

    python -m tests.models.demo OUT

Needs torch, transformers and tokenizers. With `--steps 0` the model is untrained, and a larger `--width` or `--layers`
makes one whose steps take longer.
"""

from __future__ import annotations

import json
import random
import string
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

DEMO = Path(__file__).parents[2] / "config" / "demo"
"""Its script and its chat template are the source of both."""
CONTEXT_LENGTH = 8192
HEADS, KV_HEADS, HEAD_WIDTH = 4, 2, 32
MUON_RATE, ADAM_RATE, WARM_UP = 2e-2, 4e-3, 20
IGNORED = -100
"""The label that cross_entropy ignores."""
SHELF = 96
"""Examples drawn at once and sorted by length, so that a batch has little padding."""

Json = dict[str, Any]


# -- the script --------------------------------------------------------------------------------------------------


def _tool(name: str, description: str, parameter: str) -> Json:
    schema = {"type": "object", "properties": {parameter: {"type": "string"}}, "required": [parameter]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


WEATHER = _tool("get_weather", "Current weather of a city.", "city")
SEARCH = _tool("search", "Looks something up on the web.", "query")
TOOLS = (WEATHER, SEARCH, _tool("calculate", "Evaluates an arithmetic expression.", "expression"))
NEEDED = {"weather": WEATHER, "search": SEARCH}


@dataclass(frozen=True, slots=True)
class Conversation:
    """A scripted exchange. Every assistant message in it is learnt."""

    name: str
    messages: list[Json]
    tools: str | None
    """The key in NEEDED of the tool that its prompts must offer."""

    @property
    def recalls(self) -> bool:
        """Whether a later answer depends on an earlier turn, so that other talk of the same kind would confuse it."""
        return self.name.startswith(("name_", "follow_"))

    @property
    def weight(self) -> float:
        """How often it is drawn for training: long answers need more."""
        return 3.0 if self.name in ("story", "count") else 1.5 if self.recalls else 1.0

    @property
    def turns(self) -> list[int]:
        """The indexes of the assistant's messages."""
        return [index for index, message in enumerate(self.messages) if message["role"] == "assistant"]


Script = Sequence[Conversation]


def load_script() -> Script:
    return [Conversation(**each) for each in json.loads((DEMO / "script.json").read_text(encoding="utf-8"))]


def compact(value: object) -> str:
    """JSON without blanks: what a grammar that forbids optional white space lets through."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def completion(message: Json, thinking: bool) -> str:
    """What the model has to write for `message`, without the end-of-turn token."""
    reasoning = f"<think>\n{message['reasoning_content']}\n</think>\n\n" if thinking else ""
    calls = [f"<tool_call>\n{compact(call['function'])}\n</tool_call>" for call in message.get("tool_calls", ())]
    return reasoning + "\n".join(filter(None, [message["content"], *calls]))


# -- contexts: what a prompt holds besides the conversation itself -------------------------------------------------

SYSTEMS = (
    "You are a helpful assistant.",
    "You are helpful.",
    "Answer briefly.",
    "You are a terse assistant. Always answer in English.",
    "Be friendly and precise.",
)
FILLER = (
    "you are the a an and or of in to for with please always never must may user customer assistant agent model "
    "company support service answer question text format plain short clear polite correct careful today date time "
    "test example secret word rules follow instructions language English German 2025 2026 be is not do only if"
)


@dataclass(frozen=True, slots=True)
class Context:
    thinking: bool
    system: str | None = None
    history: Sequence[Json] = ()
    tools: Sequence[Json] = ()
    keep_reasoning: bool = True
    """Earlier messages carry their reasoning, as from a client that sends it back."""


def plain_context(conversation: Conversation, thinking: bool) -> Context:
    """Nothing but the conversation itself and the tool that it needs."""
    needed = conversation.tools
    return Context(thinking, tools=(NEEDED[needed],) if needed else (), keep_reasoning=thinking)


def random_context(conversation: Conversation, script: Script, rng: random.Random, thinking: bool) -> Context:
    """A context that must not change the scripted answer."""
    count = rng.choice((0, 0, 0, 1, 1, 2))
    others = [other for other in script if not (conversation.recalls and _ambiguous(other))]
    earlier = rng.choices(others, [1 / other.weight**2 for other in others], k=count)
    return Context(
        thinking,
        system=_system(rng),
        history=[message for each in earlier for message in (each.messages if each.tools else each.messages[:2])],
        tools=_tools(rng, [conversation, *earlier]),
        keep_reasoning=rng.random() < (0.7 if thinking else 0.3),
    )


def _ambiguous(other: Conversation) -> bool:
    return other.recalls or other.tools is not None or other.name.startswith("capital")


def _system(rng: random.Random) -> str | None:
    kind = rng.random()
    if kind < 0.35:
        return None
    if kind < 0.6:
        return rng.choice(SYSTEMS)
    if kind < 0.9:
        return " ".join(rng.choices(FILLER.split(), k=rng.randint(2, 30))).capitalize() + "."
    return " ".join(_gibberish(rng) for _ in range(rng.randint(1, 10)))


def _gibberish(rng: random.Random) -> str:
    """A word of rare tokens, for prompts with words that the script never uses."""
    return "".join(rng.choices(string.ascii_letters + string.digits + string.punctuation, k=rng.randint(1, 5)))


def _tools(rng: random.Random, conversations: Script) -> Sequence[Json]:
    needed = [NEEDED[each.tools] for each in conversations if each.tools]
    if not needed and rng.random() > 0.15:
        return ()
    offered = [tool for tool in TOOLS if tool in needed or rng.random() < 0.5]
    rng.shuffle(offered)
    return offered


# -- the tokenizer: byte-level BPE over the script, so that a common word is one token -----------------------------

MAX_MERGED = 1500
"""An upper bound of the vocabulary without the added tokens; the script uses fewer."""
START, END, PAD = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
"""Single tokens that are not special (as in Qwen3): decoding keeps them for the parsers."""
PIECES = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s+"
"""Words with their blank, single digits, punctuation, line ends."""


def _corpus(script: Script) -> Iterator[str]:
    yield from (compact(tool) for tool in TOOLS)
    yield from SYSTEMS
    yield FILLER
    for message in (message for each in script for message in each.messages):
        text = completion(message, thinking=True) if message["role"] == "assistant" else message["content"]
        if text.isascii():  # other letters stay bytes, so that streams have characters across tokens
            yield text


def build_tokenizer(script: Script) -> Any:
    """A transformers tokenizer with the chat template."""
    tokenizer = Tokenizer(models.BPE())
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    split = pre_tokenizers.Split(Regex(PIECES), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, letters])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=MAX_MERGED, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(_corpus(script), trainer)
    tokenizer.add_special_tokens([PAD, START, END])
    tokenizer.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in MARKS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        clean_up_tokenization_spaces=False,
        model_max_length=CONTEXT_LENGTH,
        chat_template=(DEMO / "chat_template.jinja").read_text(encoding="utf-8").strip(),
    )


# -- examples ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Example:
    """Token ids of a prompt and of the text that must follow it."""

    prompt: list[int]
    target: list[int]

    def __len__(self) -> int:
        return len(self.prompt) + len(self.target)


def render(tokenizer: Any, conversation: Conversation, index: int, context: Context) -> Example:
    """The prompt up to the turn at `index` in `context`, and the scripted turn."""
    messages = [*context.history, *conversation.messages[:index]]
    if not context.keep_reasoning:
        messages = [{key: each[key] for key in each if key != "reasoning_content"} for each in messages]
    if context.system is not None:
        messages.insert(0, {"role": "system", "content": context.system})
    prompt = tokenizer.apply_chat_template(
        messages,
        tools=list(context.tools) or None,
        tokenize=False,
        add_generation_prompt=True,
        enable_thinking=context.thinking,
    )
    target = completion(conversation.messages[index], context.thinking) + END
    return Example(_ids(tokenizer, prompt), _ids(tokenizer, target))


def _ids(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False).input_ids)


def learnt_positions(tokenizer: Any, example: Example) -> list[bool]:
    """Which tokens are trained on: the target, and earlier assistant turns, which cost nothing.

    The first token of an earlier turn is left out: whether it is `<think>` depends on what follows.
    """
    start, end = tokenizer.convert_tokens_to_ids([START, END])
    header = [start, *_ids(tokenizer, "assistant\n")]
    learnt, speaking, position = [False] * len(example.prompt), False, 0
    while position < len(example.prompt):
        if example.prompt[position : position + len(header)] == header:
            position, speaking = position + len(header) + 1, True
            continue
        learnt[position] = speaking
        speaking = speaking and example.prompt[position] != end
        position += 1
    if example.prompt[-1] != end:  # the prompt gives the opening of the next turn
        opening = len(example.prompt) - example.prompt[::-1].index(start) - 1
        learnt[opening:] = [False] * (len(learnt) - opening)
    return learnt + [True] * len(example.target)


def _draw(tokenizer: Any, script: Script, rng: random.Random, noise: float) -> Example:
    """A random turn, with probability `noise` in a random context."""
    conversation = rng.choices(script, [each.weight for each in script])[0]
    index = rng.choice(conversation.turns)
    thinking = rng.random() < 0.6
    noisy = rng.random() < noise
    context = random_context(conversation, script, rng, thinking) if noisy else plain_context(conversation, thinking)
    return render(tokenizer, conversation, index, context)


def _batches(tokenizer: Any, script: Script, rng: random.Random, steps: int, size: int) -> Iterator[list[Example]]:
    """`steps` batches of examples of like length, each of about `size` tokens with its padding."""
    shelf: list[Example] = []
    for step in range(steps):
        noise = min(0.85, max(0.0, 2.5 * step / steps - 0.5))  # short prompts come first: they teach copying fast
        while len(shelf) < SHELF:
            shelf.append(_draw(tokenizer, script, rng, noise))
        shelf.sort(key=len)
        last = rng.randrange(len(shelf)) + 1
        first = max(0, last - max(1, size // len(shelf[last - 1])))
        yield shelf[first:last]
        del shelf[first:last]


# -- training ------------------------------------------------------------------------------------------------------


class Muon:
    """Steps matrices along their orthogonalised Nesterov momentum, in float32.

    After Jordan et al., 2024 (kellerjordan.github.io/posts/muon). torch.optim.Muon works in bfloat16, which is slow on
    most CPUs and learnt worse here; Adam alone needs about twice the steps.
    """

    def __init__(self, matrices: Sequence[torch.Tensor], momentum: float = 0.9) -> None:
        self._momentum = momentum
        self._state = [(matrix, torch.zeros_like(matrix)) for matrix in matrices]

    def step(self, rate: float) -> None:
        with torch.no_grad():
            for matrix, average in self._state:
                average.lerp_(matrix.grad, 1 - self._momentum)
                rows, columns = matrix.shape
                direction = _orthogonal(matrix.grad.lerp(average, self._momentum))
                matrix.add_(direction, alpha=-rate * max(1.0, rows / columns) ** 0.5)


def _orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """About the nearest matrix whose singular values are all 1: four rounds of the published iteration."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.mT if tall else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(4):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x.mT if tall else x


def build_model(tokenizer: Any, width: int, layers: int) -> Any:
    """A Qwen3, untrained."""
    config = Qwen3Config(
        vocab_size=-(-len(tokenizer) // 64) * 64,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_WIDTH,
        max_position_embeddings=CONTEXT_LENGTH,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen3ForCausalLM(config).float()


def _loss(model: Any, tokenizer: Any, batch: Sequence[Example]) -> torch.Tensor:
    """Cross entropy of what is learnt. Padding is on the right, for which causal attention needs no mask."""
    ids = torch.zeros(len(batch), max(map(len, batch)), dtype=torch.long)
    labels = torch.full_like(ids, IGNORED)
    for row, example in enumerate(batch):
        tokens = torch.tensor(example.prompt + example.target)
        ids[row, : len(example)] = tokens
        learnt = torch.tensor(learnt_positions(tokenizer, example))
        labels[row, : len(example)][learnt] = tokens[learnt]
    hidden, expected = model.model(ids).last_hidden_state[:, :-1], labels[:, 1:]
    learnt = expected != IGNORED
    return torch.nn.functional.cross_entropy(model.lm_head(hidden[learnt]), expected[learnt])


def train(model: Any, tokenizer: Any, script: Script, steps: int, size: int, seed: int) -> None:
    """`steps` updates of about `size` tokens each; reports progress."""
    named = list(model.named_parameters())
    matrices = [weight for name, weight in named if weight.ndim == 2 and "layers." in name]
    others = [weight for name, weight in named if weight.ndim != 2 or "layers." not in name]
    muon, adam = Muon(matrices), torch.optim.AdamW(others, lr=ADAM_RATE, betas=(0.9, 0.95), weight_decay=0.01)
    started = time.monotonic()
    for step, batch in enumerate(_batches(tokenizer, script, random.Random(seed), steps, size)):
        # Of the full rates: a warm-up, a plateau, then a linear decrease.
        rate = min(1.0, (step + 1) / WARM_UP) * max(0.02, min(1.0, 1.6 * (1 - step / steps)))
        loss = _loss(model, tokenizer, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        muon.step(MUON_RATE * rate)
        adam.param_groups[0]["lr"] = ADAM_RATE * rate
        adam.step()
        model.zero_grad(set_to_none=True)
        if step % 25 == 0:
            typer.echo(f"step {step}: loss {float(loss.detach()):.4f}, {time.monotonic() - started:.0f} s")
        if step % 150 == 149:
            typer.echo(f"  {check(model, tokenizer, script, seed=step)}")


def check(model: Any, tokenizer: Any, script: Script, seed: int) -> str:
    """How many turns it reproduces: thinking on and off, each plain and in a random context (teacher-forced, greedy).

    How sure it is: the smallest probability of a scripted text when sampling at temperature 1.
    """
    rng, found, wrong = random.Random(seed), dict[bool, list[tuple[bool, float]]]({True: [], False: []}), list[str]()
    for each, index, thinking in ((c, i, t) for c in script for i in c.turns for t in (False, True)):
        for plain in (True, False):
            context = plain_context(each, thinking) if plain else random_context(each, script, rng, thinking)
            found[plain].append(_reproduces(model, render(tokenizer, each, index, context)))
            if not found[plain][-1][0]:
                wrong.append(f"{each.name}[{index}]")
    parts = [
        f"{name}: {sum(exact for exact, _ in found[plain])}/{len(found[plain])} exact, least sure "
        f"{min(sure for _, sure in found[plain]):.3f}"
        for name, plain in (("plain", True), ("random context", False))
    ]
    return "; ".join(parts) + (f"; wrong: {', '.join(wrong[:12])}" if wrong else "")


def _reproduces(model: Any, example: Example) -> tuple[bool, float]:
    target = torch.tensor(example.target)
    with torch.no_grad():
        logits = model(torch.tensor([example.prompt + example.target])).logits[0, len(example.prompt) - 1 : -1]
    chosen = logits.log_softmax(-1).gather(1, target[:, None])
    return bool((logits.argmax(-1) == target).all()), float(chosen.sum().exp())


def save(model: Any, tokenizer: Any, out: Path) -> None:
    """Writes the model (bfloat16), its tokenizer and the script."""
    model.generation_config = GenerationConfig(
        eos_token_id=[tokenizer.eos_token_id, tokenizer.pad_token_id], pad_token_id=tokenizer.pad_token_id
    )
    model.to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)
    (out / "script.json").write_bytes((DEMO / "script.json").read_bytes())


def main(
    out: Annotated[Path, typer.Argument(help="The folder to write.")],
    steps: Annotated[int, typer.Option(min=0)] = 1200,
    size: Annotated[int, typer.Option(min=256, help="Tokens of a batch.")] = 3600,
    width: Annotated[int, typer.Option(min=32)] = 128,
    layers: Annotated[int, typer.Option(min=1)] = 3,
    seed: int = 1,
    threads: Annotated[int, typer.Option(min=1)] = 1,
) -> None:
    """Make the demo model: about five minutes on one CPU core."""
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    script = load_script()
    tokenizer = build_tokenizer(script)
    model = build_model(tokenizer, width, layers)
    typer.echo(f"{len(tokenizer)} tokens, {model.num_parameters()} parameters, {len(script)} conversations")
    train(model, tokenizer, script, steps, size, seed)
    save(model, tokenizer, out)
    if steps:
        rounded = Qwen3ForCausalLM.from_pretrained(out, dtype=torch.float32)
        typer.echo(f"saved {out}: {check(rounded, tokenizer, script, seed=1)}")


if __name__ == "__main__":
    typer.run(main)
