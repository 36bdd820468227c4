"""LoRA adapters are models of their own on the base model's engine."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from config.models import Adapter
from config.settings import ConfigError
from tests.engine.cases import COUNTED, Case, demo_model
from workers.engine import make_engine
from workers.engine.base import InvalidSampling, Sampling

pytestmark = [pytest.mark.vllm, pytest.mark.long]

RANK = 8


def adapter(folder: Path, strength: float) -> Path:
    """A LoRA adapter of the demo model with random weights."""
    import torch
    from safetensors.torch import save_file

    config = json.loads((Path(demo_model().path) / "config.json").read_text())
    hidden, heads = config["hidden_size"], config["num_attention_heads"] * config["head_dim"]
    generator = torch.Generator().manual_seed(5)
    weights = {}
    for layer in range(config["num_hidden_layers"]):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        weights[f"{name}.lora_A.weight"] = torch.randn(RANK, hidden, generator=generator)
        weights[f"{name}.lora_B.weight"] = torch.randn(heads, RANK, generator=generator) * strength
    folder.mkdir()
    save_file(weights, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": ["q_proj"], "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder


async def test_an_adapter_answers_under_its_own_name_and_leaves_the_model_as_it_is(tmp_path: Path) -> None:
    engine = await asyncio.to_thread(make_engine, demo_model())  # imports vLLM in the environment that it needs
    adapters = (
        Adapter("demo-mild", str(adapter(tmp_path / "mild", 0.0))),
        Adapter("demo-wild", str(adapter(tmp_path / "wild", 9.0))),
    )
    engine = await asyncio.to_thread(make_engine, demo_model(adapters=adapters))
    await engine.start()
    try:
        case = Case(engine, "Count from 1 to 60.", list, (), 32, demo_model().chat_template_args)
        prompt = await case.prompt()
        names = (None, "demo-mild", "demo-wild")
        samplings = [Sampling(temperature=0.0, max_tokens=300, adapter=name) for name in names]
        bare, mild, wild = await asyncio.gather(*(case.tokens(prompt, sampling) for sampling in samplings))
        assert case.text(bare) == case.text(mild) == COUNTED
        assert wild != bare
        with pytest.raises(InvalidSampling, match="'demo-gone' is no adapter"):
            await case.tokens(prompt, Sampling(adapter="demo-gone"))
    finally:
        await engine.stop()


async def test_a_folder_without_an_adapter_is_refused_in_one_line(tmp_path: Path) -> None:
    engine = await asyncio.to_thread(make_engine, demo_model(adapters=(Adapter("a", str(tmp_path)),)))
    with pytest.raises(
        ConfigError, match=r"^model 'longhaul-demo': '.*' holds no LoRA adapter \(adapter_config.json\)$"
    ):
        await engine.start()
    await engine.stop()
