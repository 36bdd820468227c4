"""Loads a model: the AsyncLLM, and what is made once for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm import AsyncEngineArgs
from vllm.lora.request import LoRARequest
from vllm.v1.engine.async_llm import AsyncLLM

from config.models import ServedModel
from config.settings import ConfigError
from workers.engine.base import InvalidSampling
from workers.engine.vllm.logprobs import LogprobReader
from workers.engine.vllm.output_format import OutputFormats
from workers.engine.vllm.rendering import Rendering

_FORCING = "workers.engine.vllm.forcing:"
_GPT_OSS = "gpt_oss"


@dataclass(frozen=True, slots=True)
class Loaded:
    llm: AsyncLLM
    rendering: Rendering
    formats: OutputFormats
    logprobs: LogprobReader
    adapters: Mapping[str, LoRARequest]
    can_force: bool
    """Whether committed tokens can be forced through its sampler."""

    def adapter(self, name: str | None) -> LoRARequest | None:
        """Raises InvalidSampling."""
        if name is not None and name not in self.adapters:
            raise InvalidSampling(f"model {name!r} is no adapter of this engine")
        return None if name is None else self.adapters[name]


def load(model: ServedModel, args: AsyncEngineArgs) -> Loaded:
    """Starts the engine's processes. Raises ConfigError, and whatever vLLM may come up with."""
    config = args.create_engine_config()
    if config.model_config.hf_config.model_type == _GPT_OSS and not model.harmony and model.format == "auto":
        raise ConfigError(f'model {model.name!r}: it speaks harmony, which its path does not tell: format = "harmony"')
    can_force = _add_forcing(config)
    llm = AsyncLLM.from_vllm_config(
        config, disable_log_stats=args.disable_log_stats, enable_log_requests=args.enable_log_requests
    )
    try:
        tokenizer = llm.renderer.get_tokenizer()
        _check_tokenizer(model, tokenizer)
        formats = OutputFormats(model, tokenizer, _end_tokens(llm, tokenizer), llm.model_config)
    except Exception:
        llm.shutdown()
        llm.engine_core.resources.ctx.destroy()  # ZeroMQ's threads: vLLM leaves them to the collector
        raise
    adapters = {each.name: LoRARequest(each.name, place + 1, each.path) for place, each in enumerate(model.adapters)}
    return Loaded(llm, Rendering(llm), formats, LogprobReader(tokenizer), adapters, can_force)


def _check_tokenizer(model: ServedModel, tokenizer: Any) -> None:
    """Raises ConfigError where a model that is to speak harmony has another vocabulary."""
    if model.harmony:
        from workers.formats.harmony.encoding import fits  # loads it: not for everyone

        if not fits(tokenizer):
            raise ConfigError(f"model {model.name!r}: its tokenizer is not that of harmony")


def _add_forcing(config: Any) -> bool:
    """Where vLLM takes no logits processors (its first model runner, when it speculates), none is added."""
    second = config.use_v2_model_runner
    if config.speculative_config is not None and not second:
        return False
    own = _FORCING + ("ForcedPrefixV2" if second else "ForcedPrefix")
    config.model_config.logits_processors = [*(config.model_config.logits_processors or ()), own]
    return True


def _end_tokens(llm: AsyncLLM, tokenizer: Any) -> frozenset[int]:
    """The tokens that end a turn."""
    named = llm.model_config.try_get_generation_config().get("eos_token_id")
    tokens = named if isinstance(named, list) else [named]
    return frozenset(token for token in (*tokens, tokenizer.eos_token_id) if token is not None)
