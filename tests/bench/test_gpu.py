"""The bench on a GPU, without one: its plan, its model folders, and a takeover on the scripted engine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from tokenizers import Tokenizer

from config.models import load_models
from config.settings import CHECKOUT
from tests.bench import page
from tests.bench.contenders.longhaul import Longhaul, Variant
from tests.bench.contenders.models import scripted
from tests.bench.gpu import PREFIX, takeover
from tests.bench.gpu.card import NoCard, first_card
from tests.bench.gpu.model_folder import END, START, write_model
from tests.bench.gpu.shapes import GPT_OSS_20B, QWEN3_8B, SHAPES, Shape
from tests.bench.gpu.steps import (
    BACKGROUND,
    CONTENDERS,
    PROMPT_TOKENS,
    RESERVED_BYTES,
    STREAMS,
    TAKEOVER,
    Step,
    planned,
)
from tests.bench.gpu.takeover import Stream, TakeoverFailed, row_of
from tests.bench.load import Mode
from tests.bench.plan import Cell, Name, Plan
from tests.bench.prompts import SHORT
from tests.bench.results import Results
from tests.faults.records import ReaderRecord
from tests.support.devices import UUIDS, gpu_machine, listing
from tests.support.services import open_folder

pytestmark = pytest.mark.long

ROUNDS = 3
H100, RTX_4090, RTX_4060 = 81559 << 20, 24564 << 20, 8188 << 20


def cells(steps: Sequence[Step], shape: Shape, number: int, contender: Name) -> list[Cell]:
    return [step.cell for step in steps if (step.shape, step.round, step.contender) == (shape, number, contender)]


# -- the plan ----------------------------------------------------------------------------------------------------


def test_every_contender_takes_the_same_steps_of_those_it_is_able_to_take() -> None:
    plan = planned(H100, ROUNDS)
    assert plan.left_out == []
    for shape in SHAPES:
        for number in range(ROUNDS):
            taken = {name: cells(plan.steps, shape, number, name) for name in CONTENDERS}
            assert all(mine[: len(STREAMS)] == list(STREAMS) for mine in taken.values())
            assert [mine[len(STREAMS) :] for mine in taken.values()] == [
                [],
                [BACKGROUND],
                [BACKGROUND, TAKEOVER] if number == ROUNDS - 1 else [BACKGROUND],
            ]


def test_another_contender_begins_in_each_round_and_each_is_started_once_in_it() -> None:
    steps = planned(H100, ROUNDS, [QWEN3_8B]).steps
    turns = list(dict.fromkeys((step.round, step.contender) for step in steps))
    assert [(step.round, step.contender) for step in steps] == sorted(
        ((step.round, step.contender) for step in steps), key=turns.index
    )
    firsts = [next(name for number, name in turns if number == each) for each in range(ROUNDS)]
    assert sorted(firsts) == sorted(CONTENDERS)


@pytest.mark.parametrize("memory", [H100, RTX_4090, RTX_4060, 16 << 30, 40 << 30])
def test_what_is_planned_fits_and_the_rest_is_left_out_with_its_sizes(memory: int) -> None:
    plan = planned(memory, ROUNDS)
    for shape in SHAPES:
        mine = {step.cell for step in plan.steps if step.shape is shape}
        reasons = [line for line in plan.left_out if line.startswith(f"{shape.name}, ")]
        assert len(mine) + len(reasons) == len({*STREAMS, BACKGROUND, TAKEOVER})
        assert all(f"and the GPU has {memory / 1e9:.1f} GB" in line for line in reasons)
        if mine:
            args = plan.served(shape, "folder").engine_args or {}
            taken = shape.weight_bytes + args["kv_cache_memory_bytes"]
            assert taken + RESERVED_BYTES <= memory
            assert args["gpu_memory_utilization"] * memory == pytest.approx(taken, rel=0.01)
            assert args["max_num_seqs"] == max(cell.concurrency for cell in mine)


def test_a_gpu_with_24_gb_is_too_small_for_many_streams_of_qwen3_8b() -> None:
    plan = planned(RTX_4090, ROUNDS)
    assert {step.cell for step in plan.steps if step.shape is QWEN3_8B} == {*STREAMS[:2], BACKGROUND}
    assert plan.left_out[0] == (
        "qwen3-8b, stream 256: left out, because 16.4 GB of weights, 9.7 GB of KV cache and "
        "6.0 GB for the rest are 32.0 GB, and the GPU has 25.8 GB"
    )


def test_a_gpu_that_is_too_small_for_any_step_has_none() -> None:
    assert planned(RTX_4060, ROUNDS).steps == []


def test_the_weights_are_as_large_as_the_published_ones() -> None:
    assert QWEN3_8B.weight_bytes == pytest.approx(16.38e9, rel=0.01)
    assert GPT_OSS_20B.weight_bytes == pytest.approx(13.76e9, rel=0.01)
    assert (QWEN3_8B.kv_bytes(1), GPT_OSS_20B.kv_bytes(1)) == (147_456, 49_152)


def test_a_step_has_its_own_number_of_tokens() -> None:
    assert Plan((), tokens=7).load(BACKGROUND, 0).body["max_output_tokens"] == 64
    assert Plan((), tokens=7).load(Cell(Mode.STREAM, 16), 0).body["max_output_tokens"] == 7


def test_contenders_read_the_engine_arguments_from_a_models_file(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    served = planned(H100, ROUNDS).served(GPT_OSS_20B, str(tmp_path / "model"))
    model = served.write(tmp_path / "models.toml")
    assert model == load_models(tmp_path / "models.toml").models[0]
    assert model.engine_args == served.engine_args
    assert model.engine_args["hf_overrides"]["model_type"] != GPT_OSS_20B.config["model_type"]
    assert (model.format, model.reasoning_parser, model.tool_parser) == ("chat", "deepseek_v3", None)
    assert model.context_length == PROMPT_TOKENS + (TAKEOVER.tokens or 0)


# -- the model folders -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=SHAPES, ids=[shape.name for shape in SHAPES])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Shape, Path]:
    shape: Shape = request.param
    return shape, write_model(shape, tmp_path_factory.mktemp("models") / shape.name)


def test_a_folder_loads_as_the_config_of_its_shape(written: tuple[Shape, Path]) -> None:
    from transformers import AutoConfig

    shape, folder = written
    config = AutoConfig.from_pretrained(folder)
    assert config.architectures == shape.config["architectures"]
    assert config.model_type == shape.config["model_type"]
    for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_key_value_heads", "head_dim", "eos_token_id"):
        assert getattr(config, name) == shape.config[name]
    assert config.rope_parameters["rope_theta"] == shape.config["rope_theta"]
    assert getattr(config, "quantization_config", None) == shape.config.get("quantization_config")


def test_its_tokenizer_gives_back_every_text(written: tuple[Shape, Path]) -> None:
    tokenizer = Tokenizer.from_file(str(written[1] / "tokenizer.json"))
    for text in (SHORT, " 256 257", "naïve 你好 👋\n\t{}", "".join(map(chr, range(1, 128)))):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_every_id_of_the_model_stands_for_text_of_its_own(written: tuple[Shape, Path]) -> None:
    shape, folder = written
    size, end = shape.config["vocab_size"], shape.config["eos_token_id"]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == size
    assert [tokenizer.id_to_token(each) for each in (end - 1, end)] == [START, END]
    texts = tokenizer.decode_batch([[each] for each in range(size)], skip_special_tokens=False)
    assert all(texts)
    whole = [text for text in texts if "\N{REPLACEMENT CHARACTER}" not in text]
    assert len(whole) == len(set(whole)) == size - 128  # but for the bytes beyond ASCII
    assert not any("\N{REPLACEMENT CHARACTER}" in text for text in texts[256:])


def test_its_chat_template_makes_a_short_prompt(written: tuple[Shape, Path]) -> None:
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(written[1])
    asked = [{"role": "user", "content": SHORT}]
    text = tokenizer.apply_chat_template(asked, add_generation_prompt=True, tokenize=False, enable_thinking=False)
    assert text == f"{START}user\n{SHORT}{END}\n{START}assistant\n"
    ids = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_dict=False)
    assert len(ids) < PROMPT_TOKENS
    assert ids.count(written[0].config["eos_token_id"]) == 1


# -- the GPU -----------------------------------------------------------------------------------------------------


def test_without_a_gpu_it_ends_at_once_with_one_sentence_and_status_2(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "tests.bench", "gpu"],
        cwd=CHECKOUT,
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout.startswith("bench: no CUDA device: ")
    assert len(done.stdout.splitlines()) == 1
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert not imported & {"torch", "transformers", "vllm"}


def put_driver(folder: Path, monkeypatch: pytest.MonkeyPatch, listed: str, memory: str) -> None:
    """An `nvidia-smi` that lists devices and says how much memory one has, and vLLM's build for GPUs by its name."""
    environment = gpu_machine(folder, listed)
    (folder / "nvidia-smi").rename(folder / "listing")
    query = f"--id={UUIDS[0]} --query-gpu=name,memory.total --format=csv,noheader,nounits"
    lines = ("#!/bin/sh", f'[ "$*" = -L ] && exec {folder}/listing -L', f'[ "$*" = "{query}" ] && echo "{memory}"')
    (folder / "nvidia-smi").write_text("\n".join(lines) + "\n")
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", environment["PATH"])
    monkeypatch.syspath_prepend(environment["PYTHONPATH"])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_the_driver_says_which_gpu_there_is_and_how_much_memory_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_driver(tmp_path, monkeypatch, listing(2), "NVIDIA H100 80GB HBM3, 81559")
    card = first_card()
    assert (card.name, card.memory) == ("NVIDIA H100 80GB HBM3", H100)
    assert card.environment == {"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@pytest.mark.parametrize(
    ("listed", "memory", "said"),
    [
        ("", "", "no CUDA device: `make bench-gpu` needs"),
        (listing(1), "[N/A]", "does not say how much memory"),
        (listing(1) + "  MIG 3g.40gb     Device  0: (UUID: MIG-1)\n", "", "is divided"),
    ],
)
def test_a_gpu_that_cannot_be_measured_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: str, memory: str, said: str
) -> None:
    put_driver(tmp_path, monkeypatch, listed, memory)
    with pytest.raises(NoCard, match=said):
        first_card()


# -- a takeover --------------------------------------------------------------------------------------------------


def record_of(numbers: Sequence[int], tokens: int = 9) -> ReaderRecord:
    """Of a reader that saw the events with these numbers, and then the end."""
    last = {"response": {"id": "resp_1", "usage": {"output_tokens": tokens}}}
    frames = [
        b"event: x\ndata: %s\n\n" % orjson.dumps({**(last if number == numbers[-1] else {}), "sequence_number": number})
        for number in numbers
    ]
    return ReaderRecord(frames=frames, arrivals=[float(number) for number in numbers], done=True, terminal=True)


def test_a_takeover_without_a_gap_has_its_pauses_in_a_row() -> None:
    row = row_of(replace(TAKEOVER, tokens=9), [Stream(record_of([0, 1, 5]), record_of([0, 1, 5]))] * 2)
    assert row["streams"] == 2 and row["events"] == 6
    assert row["longest pause s"] == 4.0


@pytest.mark.parametrize(
    ("live", "stored", "tokens", "said"),
    [
        ([0, 1, 3], [0, 1, 2, 3], 9, "1 events are lost, 0 are repeated"),
        ([0, 1, 1, 2], [0, 1, 2], 9, "0 events are lost, 1 are repeated"),
        ([0, 1, 2, 3], [0, 1, 3], 9, "0 events are lost, 1 are repeated"),
        ([0, 1, 2], [0, 1, 2], 8, "does not have its 9 tokens"),
    ],
)
def test_an_event_that_is_lost_repeated_or_not_stored_fails_the_takeover(
    live: list[int], stored: list[int], tokens: int, said: str
) -> None:
    stream = Stream(record_of(live, tokens), record_of(stored, tokens))
    with pytest.raises(TakeoverFailed, match=said):
        row_of(replace(TAKEOVER, tokens=9), [stream])


def test_a_stream_without_its_end_fails_the_takeover() -> None:
    stream = Stream(replace(record_of([0, 1]), done=False), record_of([0, 1]))
    with pytest.raises(TakeoverFailed):
        row_of(replace(TAKEOVER, tokens=9), [stream])


async def test_a_killed_worker_is_replaced_in_the_middle_of_its_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeover, "EVENTS_BEFORE", 10)
    cell = Cell(Mode.BACKGROUND_STREAM, 4, label="takeover", tokens=150)
    with open_folder() as folder:
        settings = {"LONGHAUL_LEASE_SECONDS": "3"}
        longhaul = Longhaul(Name.LONGHAUL, folder, scripted(tokens_per_second=50.0), Variant(settings=settings))
        try:
            await longhaul.start()
            row = await takeover.measure(longhaul, cell)
        finally:
            await longhaul.stop()
    assert row["streams"] == 4
    assert row["events"] > 4 * 10
    assert row["longest pause s"] > 0


def test_its_figures_go_between_marks_of_their_own(tmp_path: Path) -> None:
    about = {"date": "", "commit": "", "cores": 2, "cpu": "", "vllm": "", "gpu": "NVIDIA H100", "left_out": ["too big"]}
    row = row_of(replace(TAKEOVER, tokens=9), [Stream(record_of([0, 1]), record_of([0, 1]))])
    Results(f"{PREFIX}{QWEN3_8B.name}", about, rows=[row], folder=tmp_path).save()
    list(page.write(tmp_path, tmp_path))
    text = (tmp_path / page.PAGE).read_text()
    assert "<!-- bench:gpu-qwen3-8b -->\n" in text
    assert "NVIDIA H100" in text and "too big." in text and "| takeover | 1 |" in text
