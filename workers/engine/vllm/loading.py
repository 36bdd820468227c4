"""Loads a model: the AsyncLLM, and what is made once for it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from vllm import AsyncEngineArgs
from vllm.lora.request import LoRARequest

from config.families import first_shaping
from config.models import NONE, ServedModel
from config.settings import ConfigError
from config.shaping.proof import proven
from workers.engine.base import InvalidSampling
from workers.engine.vllm.arguments import engine_args
from workers.engine.vllm.compat import configuration, masks, processes, renderer
from workers.engine.vllm.front import Front, check_vocabulary, front_of, started_probe
from workers.engine.vllm.output.output_parser import parser_class
from workers.engine.vllm.output.proof import Fit, Written

_PARSERS = frozenset({"tool_parser", "reasoning_parser"})


@dataclass(frozen=True, slots=True)
class Loaded:
    llm: processes.AsyncLLM
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
    """The model without the guessed parsers that do not fit its tokenizer or read its calls, and why.

    A parser of the models file stays. What it does not read is in the proof (`Proof.unread`).
    """
    try:
        config = configuration.model_config_of(engine_args(replace(model, reasoning_parser=None)))
        tokenizer = configuration.tokenizer_of_model(config)
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
    if model.tool_parser is not None:
        model, reason = _reading_calls(model, config, tokenizer)
        reasons += [reason] if reason else []
    return model, reasons


def _reading_calls(model: ServedModel, config: Any, tokenizer: Any) -> tuple[ServedModel, str | None]:
    """The model with the proof of its template, and with parsers that read the calls which it writes."""
    shown = renderer.template_text(config, tokenizer, model.chat_template_args)
    if shown is None:
        return model, None
    with renderer.quiet():
        proof = proven(shown, first_shaping(model.tool_parser), images=model.images)
        written = Written(shown, proof, tokenizer, configuration.end_token_ids(config, tokenizer), config)
        is_set = "tool_parser" not in model.guessed
        fit = written.fit(replace(model, guessed=_PARSERS) if is_set else model)
    if fit.reason is None:
        return replace(model, proof=proof), None
    if is_set:
        return replace(model, proof=replace(proof, unread=_unread(fit))), None
    chosen = replace(model, proof=proof, tool_parser=fit.tool_parser, reasoning_parser=fit.reasoning_parser)
    if fit.tool_parser is None:
        return replace(chosen, proof=replace(proof, no_tools=fit.reason)), f"tool_parser none after all: {fit.reason}"
    return chosen, f"tool_parser {fit.tool_parser}, reasoning_parser {fit.reasoning_parser or NONE}: {fit.reason}"


def _unread(fit: Fit) -> str:
    would = "no parser that is known reads all of it"
    if fit.tool_parser is not None:
        would = f"tool_parser {fit.tool_parser}, reasoning_parser {fit.reasoning_parser or NONE} would"
    return f"may lose calls of tools, by the parsers of the models file: {fit.reason}; {would}"


def load(model: ServedModel, args: AsyncEngineArgs) -> Loaded:
    """Starts the engine's processes. Raises ConfigError, and whatever vLLM raises."""
    config = configuration.config_of(args)
    tokenizer = configuration.tokenizer_of(config)
    if model.harmony:
        check_vocabulary(model, tokenizer)
    can_force = configuration.add_forcing(config)
    configuration.budget_masks(config)
    masks.trust_grammars(config, tokenizer)
    with ExitStack() as stack:
        probe = started_probe(config)  # its process is ready before the engine is
        stack.callback(probe.close)
        llm = processes.start(config, args)
        stack.callback(processes.end_zeromq, llm)
        stack.callback(processes.shut_down, llm)
        front = front_of(model, llm, probe)
        stack.pop_all()
    adapters = {each.name: LoRARequest(each.name, index, each.path) for index, each in enumerate(model.adapters, 1)}
    return Loaded(llm, front, adapters, traces=args.otlp_traces_endpoint is not None, can_force=can_force)
