"""Loads a model: the AsyncLLM, and what is made once for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from vllm import AsyncEngineArgs
from vllm.lora.request import LoRARequest

from config.families import first_shaping
from config.models import NONE, ServedModel
from config.settings import ConfigError
from config.shaping.conversations import TOOLS_SHOWN
from config.shaping.proof import proven
from workers.engine.base import InvalidSampling
from workers.engine.vllm import compat
from workers.engine.vllm.arguments import engine_args
from workers.engine.vllm.front import Front, check_vocabulary, front_of, started_probe
from workers.engine.vllm.grammars import masks
from workers.engine.vllm.output.output_parser import parser_class
from workers.engine.vllm.output.proof import Written
from workers.engine.vllm.plugin import longhaul_forcing


@dataclass(frozen=True, slots=True)
class Loaded:
    llm: compat.AsyncLLM
    front: Front
    adapters: Mapping[str, LoRARequest]
    traces: bool
    """Whether it sends spans to a collector: else it would warn of a request's trace."""
    can_force: bool
    """Whether committed tokens can be forced through its sampler."""

    def adapter(self, name: str | None) -> LoRARequest | None:
        """Raises InvalidSampling for an unknown name."""
        if name is not None and name not in self.adapters:
            raise InvalidSampling(f"model {name!r} is no adapter of this engine")
        return None if name is None else self.adapters[name]


def fitted(model: ServedModel) -> tuple[ServedModel, list[str]]:
    """The model without the guessed parsers that do not fit its tokenizer or read its calls, and why."""
    try:
        config = compat.model_config_of(engine_args(replace(model, reasoning_parser=None)))
        tokenizer = compat.tokenizer_of_model(config)
    except Exception:  # vLLM's start says it better
        return model, []
    reasons = []
    for field in sorted(model.guessed):
        names: dict[str, Any] = {"tool_parser": None, "reasoning_parser": None, field: getattr(model, field)}
        try:
            parser_class(model, tokenizer, **names)
        except ConfigError as error:
            reasons.append(f"{field} none after all: {error}")
            without: dict[str, Any] = {field: None}
            model = replace(model, **without)
    if "tool_parser" in model.guessed and model.tool_parser is not None:
        model, reason = _reading_calls(model, config, tokenizer)
        reasons += [reason] if reason else []
    return model, reasons


def _reading_calls(model: ServedModel, config: Any, tokenizer: Any) -> tuple[ServedModel, str | None]:
    """The model with parsers that read the calls which its template writes."""
    shown = compat.template_text(config, tokenizer, model.chat_template_args)
    if shown is None:
        return model, None
    with compat.quiet():
        proof = proven(shown, first_shaping(model.tool_parser))
        fit = Written(shown, proof, tokenizer, compat.end_token_ids(config, tokenizer), config).fit(model)
    if fit.reason is None:
        return model, None
    chosen = replace(model, tool_parser=fit.tool_parser, reasoning_parser=fit.reasoning_parser)
    if fit.tool_parser is None:
        return replace(chosen, refusals={TOOLS_SHOWN: fit.reason}), f"tool_parser none after all: {fit.reason}"
    return chosen, f"tool_parser {fit.tool_parser}, reasoning_parser {fit.reasoning_parser or NONE}: {fit.reason}"


def load(model: ServedModel, args: AsyncEngineArgs) -> Loaded:
    """Starts the engine's processes. Raises ConfigError, and whatever vLLM raises."""
    config = compat.config_of(args)
    if model.harmony:
        check_vocabulary(model, compat.tokenizer_of(config))
    can_force = _add_forcing(config)
    if (ahead := compat.schedules_ahead(config)) is not None:
        compat.use_scheduler(config, masks.class_path(asynchronous=ahead))
    compat.trust_grammars()
    probe = started_probe(config)  # its process is ready before the engine is
    try:
        llm = compat.start(config, args)
    except BaseException:
        probe.close()
        raise
    try:
        front = front_of(model, llm, probe)
    except Exception:
        probe.close()
        compat.shut_down(llm)
        compat.end_zeromq(llm)
        raise
    adapters = {each.name: LoRARequest(each.name, index, each.path) for index, each in enumerate(model.adapters, 1)}
    return Loaded(llm, front, adapters, traces=args.otlp_traces_endpoint is not None, can_force=can_force)


def _add_forcing(config: Any) -> bool:
    """Adds the logits processor that forces tokens. False where vLLM accepts none: its first model runner, with
    speculative decoding."""
    second = compat.uses_second_model_runner(config)
    if config.speculative_config is not None and not second:
        return False
    compat.add_logits_processor(config, longhaul_forcing.class_path(second_model_runner=second))
    return True
