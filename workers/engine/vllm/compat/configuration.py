"""An engine's configuration: what is read of it and changed in it before the engine starts."""

from __future__ import annotations

from typing import Any

import xgrammar
from vllm import AsyncEngineArgs
from vllm.config import ModelConfig, VllmConfig
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.usage.usage_lib import UsageContext

from workers.engine.vllm.compat import masks
from workers.engine.vllm.compat.plugin import longhaul_forcing

SEEDED_CPU_WORKER = "workers.engine.vllm.compat.cpu_worker.SeededCpuWorker"


def config_of(args: AsyncEngineArgs) -> VllmConfig:
    """The engine's config, with the defaults of `vllm serve`.

    vLLM has other defaults (`max_num_seqs`, `max_num_batched_tokens`) for each context of its use, and small ones for
    an unknown context.
    """
    return args.create_engine_config(UsageContext.OPENAI_API_SERVER)


def model_config_of(args: AsyncEngineArgs) -> ModelConfig:
    """What there is before the config, which cannot be made with a reasoning parser that does not fit."""
    return args.create_model_config()


def tokenizer_of(config: VllmConfig) -> Any:
    """The tokenizer that the engine will have, which vLLM loads once."""
    return tokenizer_of_model(config.model_config)


def tokenizer_of_model(model_config: ModelConfig) -> Any:
    return cached_tokenizer_from_config(model_config)


def end_token_ids(model_config: ModelConfig, tokenizer: Any) -> frozenset[int]:
    """The tokens that end a turn, by the model's generation config and its tokenizer."""
    named = model_config.try_get_generation_config().get("eos_token_id")
    tokens = named if isinstance(named, list) else [named]
    return frozenset(token for token in (*tokens, tokenizer.eos_token_id) if token is not None)


def xgrammar_vocabulary(config: VllmConfig) -> str:
    """The vocabulary that vLLM compiles grammars for, as xgrammar's JSON; of a tokenizer that xgrammar does not know,
    the characters of ASCII stand in."""
    size = config.model_config.get_vocab_size()
    try:
        info = xgrammar.TokenizerInfo.from_huggingface(tokenizer_of(config), vocab_size=size)
    except Exception:  # xgrammar's errors for a tokenizer without a vocabulary of its own
        info = xgrammar.TokenizerInfo([chr(code) for code in range(128)], stop_token_ids=[0])
    return str(info.serialize_json())


def add_forcing(config: VllmConfig) -> bool:
    """Adds the logits processor that forces tokens. False where vLLM accepts none: its first model runner, with
    speculative decoding."""
    second = bool(config.use_v2_model_runner)
    if config.speculative_config is not None and not second:
        return False
    processors = config.model_config.logits_processors or ()
    config.model_config.logits_processors = [*processors, longhaul_forcing.class_path(second_model_runner=second)]
    return True


def budget_masks(config: VllmConfig) -> None:
    """Has masks cost no more than their budget, unless the engine has a special scheduler, of the operator or of the
    model."""
    scheduler = config.scheduler_config
    if scheduler.scheduler_cls is None:
        scheduler.scheduler_cls = masks.class_path(asynchronous=bool(scheduler.async_scheduling))
