"""Every use of a vLLM internal: names, attributes and messages that vLLM does not promise to its users.

The other modules of this package import vLLM's documented names only (`vllm`, `vllm.config`, `vllm.exceptions`,
`vllm.inputs`, `vllm.lora.request`, `vllm.sampling_params`) and call this module for the rest. Tried with vLLM 0.32:
tests/engine/test_compat.py names the internal that a new version has changed.
"""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import xgrammar
from openai.types.responses import FunctionTool
from vllm import AsyncEngineArgs, envs
from vllm.entrypoints.generate.base.protocol import DeltaMessage
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionToolsParam
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.exceptions import VLLMValidationError
from vllm.parser import Parser, ParserManager
from vllm.parser.abstract_parser import DelegatingParser
from vllm.platforms import current_platform
from vllm.renderers import hf, renderer_from_config
from vllm.renderers.chat_utils import parse_chat_messages
from vllm.renderers.hf import HfRenderer
from vllm.renderers.kimi_k3 import KimiK3Renderer
from vllm.renderers.mistral import MistralRenderer
from vllm.renderers.params import ChatParams
from vllm.tokenizers import cached_tokenizer_from_config
from vllm.tool_parsers.functiongemma_tool_parser import FunctionGemmaToolParser
from vllm.tool_parsers.structural_tag_registry import limit_to_single_tool_call
from vllm.tool_parsers.tool_strict_level import ToolStrictLevel
from vllm.usage.usage_lib import UsageContext
from vllm.utils.cpu_resource_utils import get_allowed_cpu_list
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.executor.uniproc_executor import UniProcExecutor
from vllm.v1.request import RequestStatus
from vllm.v1.structured_output import backend_xgrammar
from vllm.version import __version__ as vllm_version

from config.shaping.proof import Render
from config.shaping.shape import AS_SENT, Shaping
from workers.engine.base import PromptTooLong, check_length
from workers.engine.vllm.as_text import NO_MARKS, Encode, TextMarks, text_marks

__all__ = [
    "CPU_TUNING",
    "IN_CORE_EXECUTOR",
    "AsyncLLM",
    "AsyncScheduler",
    "ChatRenderer",
    "EngineDeadError",
    "Parser",
    "ResponsesRequest",
    "Scheduler",
    "StreamingParser",
]

T = TypeVar("T")

CPU_TUNING = ("VLLM_CPU_OMP_THREADS_BIND", "VLLM_CPU_NUM_OF_RESERVED_CPU")
"""Environment variables by which an operator assigns the cores to vLLM's own CPU executor."""

RENDER_THREADS = 2
"""vLLM's threads for prompts. It keeps one tokenizer more than threads; that one is the event loop's."""
_CPU_WORKER = "vllm.v1.worker.cpu_worker.CPUWorker"
_SEEDED_CPU_WORKER = "workers.engine.vllm.cpu_worker.SeededCpuWorker"
_SOCKET_FOLDER = "VLLM_RPC_BASE_PATH"
_KILLED = re.compile(r"Failed core proc\(s\): \{(\}|[^}]*: -\d)")
"""vLLM's message (v1/engine/utils.py) about a start during which a signal ended a process of the engine, or during
which a process ended for an unknown reason."""


# -- the machine and the configuration


def runs_on_cpu() -> bool:
    """Whether vLLM found no accelerator on this machine."""
    return bool(current_platform.is_cpu())


def physical_cores() -> int:
    """The cores that this process may use, hyper-threads not counted."""
    return len({(cpu.numa_node, cpu.physical_core) for cpu in get_allowed_cpu_list()})


def lora_slots(adapters: int) -> int:
    """A slot for each adapter. vLLM's CPU kernels read the last slot for requests without an adapter, so there it stays
    empty (lora/ops/torch_ops: `lora_b_weights[-1]`)."""
    return adapters + (1 if runs_on_cpu() else 0)


def uses_second_model_runner(config: Any) -> bool:
    """vLLM has two model runners; logits processors have another interface in the second."""
    return bool(config.use_v2_model_runner)


def add_logits_processor(config: Any, class_path: str) -> None:
    config.model_config.logits_processors = [*(config.model_config.logits_processors or ()), class_path]


# -- the engine's processes


class InCore(UniProcExecutor):  # type: ignore[misc]  # vLLM's types are not followed
    """vLLM's executor for one device, which runs the model in EngineCore's own process.

    `CpuPlatform` replaces that executor by "mp" when it is asked for as "uni"; it does not know this name.
    """


IN_CORE_EXECUTOR = f"{__name__}.{InCore.__name__}"


def set_socket_folder(folder: Path) -> None:
    """Where vLLM makes the sockets of the engines that start from now on; it leaves them there."""
    os.environ[_SOCKET_FOLDER] = str(folder)


def config_of(args: AsyncEngineArgs) -> Any:
    """The engine's config, with the defaults of `vllm serve`.

    vLLM has other defaults (`max_num_seqs`, `max_num_batched_tokens`) for each context of its use, and small ones for
    an unknown context.
    """
    config = args.create_engine_config(UsageContext.OPENAI_API_SERVER)
    if config.parallel_config.worker_cls == _CPU_WORKER:
        config.parallel_config.worker_cls = _SEEDED_CPU_WORKER
    return config


def tokenizer_of(config: Any) -> Any:
    """The tokenizer that the engine will have, which vLLM loads once."""
    return cached_tokenizer_from_config(config.model_config)


class HasRenderer(Protocol):
    """What prompts and parsers need of an AsyncLLM."""

    @property
    def renderer(self) -> Any: ...

    @property
    def model_config(self) -> Any: ...


class NoEngine:
    """Has a renderer as an AsyncLLM has it, and no engine. Takes a tokenizer's files, no weights, and no device."""

    def __init__(self, config: Any) -> None:
        self.model_config = config.model_config
        self.renderer = renderer_from_config(config)

    def close(self) -> None:
        self.renderer.shutdown()


def own_version() -> str:
    return str(vllm_version)


def model_config_of(args: AsyncEngineArgs) -> Any:
    """What there is before the config, which cannot be made with a reasoning parser that does not fit."""
    return args.create_model_config()


def tokenizer_of_model(model_config: Any) -> Any:
    return cached_tokenizer_from_config(model_config)


def requests_at_once(llm: AsyncLLM) -> int:
    """How many requests it generates at once: each of its engines has as many slots."""
    slots: int = llm.vllm_config.scheduler_config.max_num_seqs
    engines: int = llm.vllm_config.parallel_config.data_parallel_size
    return slots * engines


def cache_tokens(llm: AsyncLLM) -> int | None:
    """How many tokens its KV caches hold: each of its engines says the same. None: the model has no such cache."""
    tokens: int | None = llm.vllm_config.cache_config.kv_cache_size_tokens
    return tokens and tokens * llm.vllm_config.parallel_config.data_parallel_size


def device_name(llm: AsyncLLM) -> str | None:
    """The devices that it computes on, as their driver names the first one; None: the driver does not say."""
    parallel = llm.vllm_config.parallel_config
    count: int = parallel.world_size * parallel.data_parallel_size
    try:
        name = str(current_platform.get_device_name())
    except Exception:  # each platform asks a library of its own, which may raise anything
        return None
    return name if count == 1 else f"{count} x {name}"


def start(config: Any, args: AsyncEngineArgs) -> AsyncLLM:
    """Starts the engine's processes and waits for them. Raises whatever vLLM raises."""
    return AsyncLLM.from_vllm_config(
        config, disable_log_stats=args.disable_log_stats, enable_log_requests=args.enable_log_requests
    )


def was_killed(error: BaseException) -> bool:
    """Whether a start failed because a process of the engine was killed, for instance for lack of memory."""
    return isinstance(error, RuntimeError) and _KILLED.search(str(error)) is not None


def end_streams(llm: AsyncLLM) -> None:
    """Raises EngineDeadError in every reader: `shutdown` alone would leave them waiting. From now on vLLM takes the end
    of its processes for no crash."""
    llm.engine_core.resources.engine_manager.manager_stopped.set()
    llm.output_processor.propagate_error(EngineDeadError())
    if llm.output_handler is not None:
        llm.output_handler.cancel()


def shut_down(llm: AsyncLLM) -> None:
    """Ends what vLLM keeps for an engine, and kills the processes that are left. Blocks."""
    llm.shutdown(timeout=0)


def end_zeromq(llm: AsyncLLM) -> None:
    """Ends ZeroMQ's threads, which vLLM leaves to the garbage collector. To be called after `shut_down`, on the loop.

    It waits until the sockets are closed, and vLLM closes them on the loop.
    """
    llm.engine_core.resources.ctx.destroy()


def end_token_ids(model_config: Any, tokenizer: Any) -> frozenset[int]:
    """The tokens that end a turn, by the model's generation config and its tokenizer."""
    named = model_config.try_get_generation_config().get("eos_token_id")
    tokens = named if isinstance(named, list) else [named]
    return frozenset(token for token in (*tokens, tokenizer.eos_token_id) if token is not None)


# -- prompts

_THINKING = "longhaul_thinking"


def _showing_thinking(apply: Callable[..., Any]) -> Callable[..., Any]:
    """vLLM hands on the fields that it knows alone: this adds `thinking` to answers, if `_THINKING` asks for it."""

    def applied(model_config: Any, tokenizer: Any, conversation: list[Any], **args: Any) -> Any:
        if args.pop(_THINKING, False):
            conversation = [
                {**message, "thinking": message.get("reasoning") or ""} if message["role"] == "assistant" else message
                for message in conversation
            ]
        return apply(model_config, tokenizer, conversation, **args)

    return applied


hf.safe_apply_chat_template = _showing_thinking(hf.safe_apply_chat_template)
_hf_log = logging.getLogger(hf.__name__)
_hf_log.addFilter(lambda record: "content-format" not in str(record.msg))  # which is proven, not guessed


def template_text(model_config: Any, tokenizer: Any, template_args: Mapping[str, Any]) -> Render | None:
    """Renders messages to text by the chat template, before there is an engine; None if code makes the prompts."""
    if getattr(tokenizer, "chat_template", None) is None:
        return None

    def shown(messages: Sequence[Any], tools: Sequence[Any], shaping: Shaping) -> str:
        content_format = "openai" if shaping.parts else "string"
        copies = copy.deepcopy([dict(message) for message in messages])  # vLLM changes calls in place
        conversation, _, _ = parse_chat_messages(copies, model_config, content_format=cast(Any, content_format))
        args = {"add_generation_prompt": True, **template_args, _THINKING: shaping.thinking}
        listed = list(tools) or None
        text = hf.safe_apply_chat_template(model_config, tokenizer, conversation, tools=listed, tokenize=False, **args)
        return str(text)

    return shown


@contextmanager
def quiet() -> Iterator[None]:
    """vLLM warns of each conversation that a template refuses, and of each text that a parser cannot read; where that
    is tried, nobody has to know."""
    loggers = [logging.getLogger("vllm"), _hf_log]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


class ChatRenderer:
    """Messages to vLLM's engine input, by the model's chat template. For the code of one event loop."""

    def __init__(self, llm: HasRenderer) -> None:
        self._renderer = llm.renderer
        self._limited = self._renderer.default_chat_tok_params
        self._whole = replace(self._limited, max_total_tokens=None)  # a small prompt is counted to its end
        self._shaping = AS_SENT

    @cached_property
    def marks(self) -> TextMarks:
        """How callers' texts stay text. To be asked for once the shaping is known."""
        if isinstance(self._renderer, KimiK3Renderer | MistralRenderer):
            return NO_MARKS
        try:
            has_text = bool(self._rendered_text([{"role": "user", "content": "Hello!"}], {}))
        except Exception:  # a template is a program; and a renderer may have no text
            has_text = False
        return text_marks(self._renderer.get_tokenizer(), has_text=has_text)

    def shaped_for(self, shaping: Shaping) -> None:
        """From now on messages are shaped so."""
        self._shaping = shaping

    def text(self, messages: list[Any], template_args: Mapping[str, Any]) -> str:
        """The prompt as text."""
        if isinstance(self._renderer, HfRenderer):
            return self._rendered_text(messages, template_args)
        text: str = self._renderer.get_tokenizer().decode(self.render(messages, template_args)["prompt_token_ids"])
        return text

    def _rendered_text(self, messages: list[Any], template_args: Mapping[str, Any]) -> str:
        _, prompt = self._renderer.render_messages(messages, self._params({**template_args, "tokenize": False}))
        text: str = prompt["prompt"]
        return text

    def render(self, messages: list[Any], template_args: Mapping[str, Any], encode: Encode | None = None) -> Any:
        """`encode`: makes the prompt's tokens of its text."""
        if encode is not None:
            return {"prompt_token_ids": encode(self._rendered_text(messages, template_args))}
        _, [made] = self._renderer.render_chat([messages], self._params(template_args), self._whole)
        return made

    async def render_in_thread(
        self, messages: list[Any], template_args: Mapping[str, Any], encode: Encode | None = None, *, large: bool
    ) -> Any:
        """Raises PromptTooLong for a `large` prompt whose text alone is too long, or has too many tokens."""
        if encode is not None:
            params = self._params({**template_args, "tokenize": False})
            _, prompt = await self._renderer.render_messages_async(messages, params)
            return await asyncio.to_thread(self._encoded, prompt["prompt"], encode, large=large)
        limited = large and self._renderer.mm_processor is None  # images become tokens elsewhere
        tokens = self._limited if limited else self._whole
        if limited and isinstance(self._renderer, HfRenderer):
            template_args = {**template_args, "tokenize": False}  # else the template makes all tokens before any check
        try:
            _, [made] = await self._renderer.render_chat_async([messages], self._params(template_args), tokens)
        except VLLMValidationError as error:
            if error.parameter in ("input_text", "input_tokens"):
                raise PromptTooLong(None, self._limited.max_total_tokens) from None
            raise
        return made

    def _encoded(self, text: str, encode: Encode, *, large: bool) -> Any:
        if large:
            check_length([text], lambda piece: len(encode(piece)), self._limited.max_total_tokens)
        return {"prompt_token_ids": encode(text)}

    def _params(self, template_args: Mapping[str, Any]) -> ChatParams:
        if self._shaping.thinking:
            template_args = {**template_args, _THINKING: True}
        content_format = "openai" if self._shaping.parts else "string"
        return ChatParams(
            chat_template_kwargs=dict(template_args), chat_template_content_format=cast(Any, content_format)
        )


def has_media(engine_input: Mapping[str, Any]) -> bool:
    return engine_input.get("type") == "multimodal"


# -- reasoning and tool parsers


def parser_class(
    tokenizer: Any, model_path: str, *, reasoning_parser: str | None, tool_parser: str | None
) -> type[Parser] | None:
    """vLLM's parser of these names; None if both are None. Raises what the parser raises."""
    found: type[Parser] | None = ParserManager.get_parser(
        tool_parser_name=tool_parser,
        reasoning_parser_name=reasoning_parser,
        enable_auto_tools=tool_parser is not None,
        model_name=model_path,
        tokenizer=tokenizer,
    )
    return found


def reasoning_marks(parser: Parser) -> tuple[str, str] | None:
    """The texts that begin and end a model's thoughts; None: it has none, or the parser does not tell."""
    found = parser.reasoning_parser
    if found is None or not found.reasoning_start_str or not found.reasoning_end_str:
        return None
    return found.reasoning_start_str, found.reasoning_end_str


def chat_tool(function: FunctionTool) -> ChatCompletionToolsParam:
    """The function as the Chat Completions API has it: some parsers take no other."""
    fields = function.model_dump(include={"name", "description", "parameters", "strict"})
    return ChatCompletionToolsParam(function=fields)


def shows_special_tokens(parser: Parser, request: ResponsesRequest) -> bool:
    """Whether the parser must see special tokens as text."""
    plain = request.model_copy(update={"tool_choice": "auto" if request.tools else "none"})
    return not parser.adjust_request(plain).skip_special_tokens


def calls_format(parser: Parser, request: ResponsesRequest, *, enforce: bool) -> dict[str, Any] | None:
    """The format of the request's calls (of a structural tag), if the parser has one, and it is asked for.

    `enforce`: also if the model may choose not to call. Raises ValueError if the parser cannot enforce the choice.
    """
    tools = parser.tool_parser
    level = ToolStrictLevel.FUNCTION if enforce else tools.default_tool_strict_level or ToolStrictLevel.AUTO
    tag = tools.get_structural_tag(request, strict_level=level)
    if tag is None:
        return None
    made: dict[str, Any] = (tag if request.parallel_tool_calls else limit_to_single_tool_call(tag)).model_dump()
    return dict(made["format"])


def implicit_ends(parser: Parser) -> frozenset[int]:
    """Tokens that begin a call, and end the reasoning before them: from there on vLLM holds the answer to its grammar,
    and gives up a request whose grammar has no call there."""
    reasoning = parser.reasoning_parser
    ends: frozenset[int] = getattr(reasoning, "reasoning_end_token_ids", frozenset())
    return ends - {parser.model_tokenizer.get_vocab().get(reasoning.reasoning_end_str)} if ends else ends


def can_read_list(parser: Parser) -> bool:
    """Whether vLLM can read required calls as a JSON list instead of the parser's own form."""
    return type(parser).parse_delta is DelegatingParser.parse_delta


class StreamingParser:
    """vLLM's streaming parser for one answer."""

    def __init__(self, parser: Parser, request: ResponsesRequest, prompt: Sequence[int], *, listed: bool) -> None:
        """`listed`: the calls are a JSON list, which vLLM reads from all of the text so far."""
        self._parser = parser
        if listed:
            parser.tool_parser.supports_required_and_named = True
            parser._stream_state.engine_based = False
        pattern = getattr(parser.tool_parser, "stream_tool_call_portion_regex", None)
        if pattern is not None:  # DeepSeek V3's: it loses what follows a line feed in a call's JSON
            parser.tool_parser.stream_tool_call_portion_regex = re.compile(pattern.pattern, re.DOTALL)
        if isinstance(parser.tool_parser, FunctionGemmaToolParser):
            parser.tool_parser.tool_call_regex = _WHOLE_CALL
            parser.tool_parser._parse_arguments = function_gemma_arguments
        if parser.tool_parser is not None and not parser.tool_parser.engine_based_streaming:
            parser.tool_parser.extract_tool_calls_streaming = _Behind(parser.tool_parser)
        self._request = request
        self._prompt = list(prompt)
        parser.set_prompt_token_ids(self._prompt)

    def feed(self, text: str, token_ids: Sequence[int], *, finished: bool) -> Any | None:
        """A DeltaMessage (`content`, `reasoning`, `tool_calls`), or None."""
        return self._parser.parse_delta(text, list(token_ids), self._request, self._prompt, finished=finished)

    @property
    def call_start(self) -> str | None:
        """The text that begins a tool call, if the parser has one."""
        tools = self._parser.tool_parser
        start = getattr(tools, "tool_call_start_token", None) or _FIRST_MARKS.get(type(tools).__name__)
        return start if isinstance(start, str) else None


_FIRST_MARKS: Mapping[str, str] = {
    "Olmo3PythonicToolParser": "<function_calls>",
    "Granite20bFCToolParser": "<function_call>",
}
"""Of parsers that take a call for text if anything comes before it: the mark that begins calls."""
_BRACKETS = ("{", "[", "<")


class _Behind:
    """Shows a parser of calls the answer from its first call on: several know no call that has something before it.

    For some that is white space, which models write behind thoughts; for those with a mark also text.
    """

    def __init__(self, parser: Any) -> None:
        self._extract = parser.extract_tool_calls_streaming
        self._mark = _FIRST_MARKS.get(type(parser).__name__)
        self._said = 0
        """Characters before the mark that were passed on."""

    def __call__(self, previous: str, current: str, delta: str, *rest: Any) -> Any:
        if self._mark is not None:
            return self._behind_text(self._mark, previous, current, *rest)
        text = current.lstrip()
        if text.startswith(_BRACKETS) and text != current:
            previous = previous.lstrip()
            current, delta = text, text[len(previous) :]
        return self._extract(previous, current, delta, *rest)

    def _behind_text(self, mark: str, previous: str, current: str, *rest: Any) -> Any:
        begins = current.find(mark)
        held = next((n for n in range(len(mark) - 1, 0, -1) if current.endswith(mark[:n])), 0)
        until = len(current) - held if begins < 0 else begins
        said, self._said = current[self._said : until], max(self._said, until)
        made = None
        if begins >= 0:
            start = max(begins, len(previous))
            made = self._extract(previous[begins:], current[begins:], current[start:], *rest)
        if said:
            made = made or DeltaMessage()
            made.content = said + (made.content or "")
        return made


_ESCAPED = "<escape>"
_BARE_KEY = re.compile(r"([{,]\s*)(\w+)(?=\s*:)")


_WHOLE_CALL = re.compile(
    r"<start_function_call>call:(\w+)(\{.*?\})<end_function_call>|<start_function_call>call:(\w+)(\{.*)", re.DOTALL
)


def function_gemma_arguments(written: str) -> dict[str, Any]:
    """FunctionGemma's arguments: strings are between `<escape>`, anything else is as in JSON, but for bare keys. vLLM
    drops what is no string, and makes numbers of strings. They come whole, with their braces, or not at all."""
    if not written.startswith("{"):
        return {}
    pieces = written.split(_ESCAPED)
    quoted = [json.dumps(piece) if index % 2 else _BARE_KEY.sub(r'\1"\2"', piece) for index, piece in enumerate(pieces)]
    try:
        found = json.loads("".join(quoted))
    except ValueError:  # not whole yet
        return {}
    return found if isinstance(found, dict) else {}


# -- grammars and logits


def trust_grammars() -> None:
    """Has vLLM take the grammars of this process as they are: each was tried within limits before.

    Otherwise it parses each once more, on the event loop, where nothing bounds it.
    """
    backend_xgrammar.validate_xgrammar_grammar = lambda _params: None


def grammar_cache_bytes() -> int:
    """What the engine keeps of compiled grammars."""
    return int(envs.VLLM_XGRAMMAR_CACHE_MB) * 2**20


def schedules_ahead(config: Any) -> bool | None:
    """Whether vLLM's scheduler plans a step ahead; None: it has a special one, of the operator or of the model."""
    found = config.scheduler_config
    return None if found.scheduler_cls is not None else bool(found.async_scheduling)


def use_scheduler(config: Any, class_path: str) -> None:
    config.scheduler_config.scheduler_cls = class_path


def time_grammars() -> None:
    """Has each grammar of this process add up the CPU seconds that its masks and its tokens take."""
    for name in ("fill_bitmask", "accept_tokens"):
        setattr(backend_xgrammar.XgrammarGrammar, name, _timed(getattr(backend_xgrammar.XgrammarGrammar, name)))


def _timed(call: Callable[..., Any]) -> Callable[..., Any]:
    def timed(grammar: Any, *args: Any) -> Any:
        began = time.thread_time()
        try:
            return call(grammar, *args)
        finally:
            grammar.longhaul_seconds = getattr(grammar, "longhaul_seconds", 0.0) + time.thread_time() - began

    return timed


def take_spent(scheduler: Any, masks: Any) -> Iterator[tuple[str, float]]:
    """By request, what the grammars took that have these masks, since this was called last."""
    for request_id in masks.structured_output_request_ids:
        grammar = scheduler.requests[request_id].structured_output_request.grammar
        yield request_id, grammar.__dict__.pop("longhaul_seconds", 0.0)


def still_there(scheduler: Any, by_request: Mapping[str, T]) -> dict[str, T]:
    return {name: each for name, each in by_request.items() if name in scheduler.requests}


def extra_args_of(scheduler: Any, request_id: str) -> Mapping[str, Any]:
    return scheduler.requests[request_id].sampling_params.extra_args or {}


def end_requests(scheduler: Any, request_ids: Sequence[str], outputs: Any, reason: str) -> None:
    """Ends them as failed, for this reason. `outputs` are those of a step, by client."""
    for request in scheduler.finish_requests(request_ids, RequestStatus.FINISHED_ERROR):
        last = EngineCoreOutput(request.request_id, [], finish_reason=request.get_finished_reason(), stop_reason=reason)
        outputs.setdefault(request.client_index, EngineCoreOutputs()).outputs.append(last)


def xgrammar_vocabulary(config: Any) -> str:
    """The vocabulary that vLLM compiles grammars for, as xgrammar's JSON; of a tokenizer that xgrammar does not know,
    the characters of ASCII stand in."""
    try:
        size = config.model_config.get_vocab_size()
        info = xgrammar.TokenizerInfo.from_huggingface(tokenizer_of(config), vocab_size=size)
    except Exception:  # xgrammar's errors for a tokenizer without a vocabulary of its own
        info = xgrammar.TokenizerInfo([chr(code) for code in range(128)], stop_token_ids=[0])
    return str(info.serialize_json())
