"""vLLM's internals are as workers/engine/vllm/compat.py expects them, and nothing else of the product uses any.

A failure here after an update of vLLM names the internal that has changed.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.engine.cases import Case, demo_model

PACKAGE = Path(__file__).parents[2] / "workers" / "engine" / "vllm"
DOCUMENTED = ("vllm", "vllm.config", "vllm.exceptions", "vllm.inputs", "vllm.lora.request", "vllm.sampling_params")
"""Modules of vLLM's public interface."""

SIGNATURES = {
    "vllm.v1.engine.async_llm:AsyncLLM.from_vllm_config": ["vllm_config", "disable_log_stats", "enable_log_requests"],
    "vllm.v1.engine.async_llm:AsyncLLM.generate": [
        *(
            "prompt",
            "sampling_params",
            "request_id",
            "priority",
            "lora_request",
            "reasoning_parser_kwargs",
            "reasoning_ended",
        )
    ],
    "vllm.v1.engine.async_llm:AsyncLLM.shutdown": ["timeout"],
    "vllm.v1.engine.async_llm:AsyncLLM.get_num_unfinished_requests": [],
    "vllm.v1.engine.output_processor:OutputProcessor.propagate_error": ["e"],
    "vllm.renderers.base:BaseRenderer.render_chat": ["conversations", "chat_params", "tok_params"],
    "vllm.renderers.base:BaseRenderer.render_chat_async": ["conversations", "chat_params", "tok_params"],
    "vllm.renderers.base:BaseRenderer.render_messages": ["messages", "params"],
    "vllm.renderers.base:BaseRenderer.render_messages_async": ["messages", "params"],
    "vllm.renderers.params:ChatParams": ["chat_template_kwargs"],
    "vllm.utils.cpu_resource_utils:get_allowed_cpu_list": [],
    "vllm.parser:ParserManager.get_parser": [
        *("tool_parser_name", "reasoning_parser_name", "enable_auto_tools", "model_name", "tokenizer")
    ],
    "vllm.parser:Parser.adjust_request": ["request"],
    "vllm.parser:Parser.set_prompt_token_ids": ["prompt_token_ids"],
    "vllm.parser:Parser.parse_delta": [
        *("delta_text", "delta_token_ids", "request", "prompt_token_ids", "finished"),
    ],
    "vllm.v1.sample.logits_processor:AdapterLogitsProcessor.new_req_logits_processor": ["params"],
    "vllm.v1.worker.gpu.sample.logits_processor:LogitsProcessor.__init__": ["vllm_config", "req_states"],
    "vllm.v1.worker.gpu.sample.logits_processor:LogitsProcessor.add_request": ["req_idx", "sampling_params"],
    "vllm.v1.worker.gpu.sample.logits_processor:LogitsProcessor.apply": ["logits", "ctx"],
    "vllm.v1.core.sched.scheduler:Scheduler.get_grammar_bitmask": ["scheduler_output"],
    "vllm.v1.core.sched.scheduler:Scheduler.update_from_output": ["scheduler_output", "model_runner_output"],
    "vllm.v1.core.sched.scheduler:Scheduler.finish_requests": ["request_ids", "finished_status"],
    "vllm.v1.structured_output.backend_xgrammar:XgrammarGrammar.fill_bitmask": ["bitmask", "idx"],
    "vllm.v1.structured_output.backend_xgrammar:XgrammarGrammar.accept_tokens": ["request_id", "tokens"],
    "vllm.v1.engine:EngineCoreOutput": ["request_id", "new_token_ids", "finish_reason", "stop_reason"],
}
"""Internals that are called, with the parameters that we pass, or that vLLM passes to our classes."""


def found(path: str) -> Any:
    module, _, names = path.partition(":")
    return attrgetter(names)(importlib.import_module(module))


def imported_modules(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module


def test_only_compat_imports_vllms_internals() -> None:
    files = [
        file for file in PACKAGE.rglob("*.py") if file.name not in ("compat.py", "cpu_worker.py", "longhaul_forcing.py")
    ]
    assert len(files) > 20
    for file in files:
        deep = {name for name in imported_modules(file) if name.split(".")[0] == "vllm"} - set(DOCUMENTED)
        assert not deep, f"{file.name} imports {deep}: let compat.py do that"


PRIVATE = {"_stream_state", "_parse_arguments"}
"""Of vLLM's parsers: how calls as a JSON list are read, and FunctionGemma's arguments (docs/internals/decisions/
libraries.md). tests/engine/test_tool_parsers.py and test_template_proof.py fail if they change."""


def test_no_module_touches_private_attributes_of_others() -> None:
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
                if file.name == "compat.py" and node.attr in PRIVATE:
                    continue
                assert isinstance(node.value, ast.Name) and node.value.id == "self", f"{file.name}:{node.lineno}"


@pytest.mark.vllm
@pytest.mark.filterwarnings("ignore")  # vLLM's own, at import
class TestInternals:
    @pytest.mark.parametrize("path", SIGNATURES)
    def test_a_function_takes_what_we_pass(self, path: str) -> None:
        parameters = inspect.signature(found(path)).parameters
        assert [name for name in SIGNATURES[path] if name not in parameters] == []

    def test_the_environment_variables_are_known(self) -> None:
        known = found("vllm.envs:environment_variables")
        names = (
            *("VLLM_RPC_BASE_PATH", "VLLM_CPU_OMP_THREADS_BIND", "VLLM_LOGGING_LEVEL", "VLLM_LOGGING_STREAM"),
            *("VLLM_NO_USAGE_STATS", "VLLM_WORKER_MULTIPROC_METHOD", "VLLM_MAX_IMAGE_PIXELS"),
        )
        assert [name for name in names if name not in known] == []

    def test_the_defaults_are_those_of_vllm_serve(self) -> None:
        """Those of this machine may be the same in every context, so vLLM's are replaced."""
        from vllm import AsyncEngineArgs
        from vllm.usage.usage_lib import UsageContext

        from workers.engine.vllm import compat

        defaults = {UsageContext.OPENAI_API_SERVER: 768}, {UsageContext.OPENAI_API_SERVER: 384}
        args = AsyncEngineArgs(model=demo_model().path, max_model_len=512)
        with mock.patch.object(AsyncEngineArgs, "get_batch_defaults", return_value=defaults):
            scheduler = compat.config_of(args).scheduler_config
        assert (scheduler.max_num_batched_tokens, scheduler.max_num_seqs) == (768, 384)

    def test_a_killed_process_is_told_from_a_failed_start(self) -> None:
        from workers.engine.vllm import compat

        assert "Failed core proc(s): " in inspect.getsource(importlib.import_module("vllm.v1.engine.utils"))
        message = "Engine core initialization failed. See root cause above. Failed core proc(s): {}"
        assert compat.was_killed(RuntimeError(message.format("{'EngineCore': -9}")))
        assert compat.was_killed(RuntimeError(message.format("{}")))
        assert not compat.was_killed(RuntimeError(message.format("{'EngineCore': 1}")))

    def test_rendering_takes_token_params_without_a_limit(self) -> None:
        fields = {field.name for field in dataclasses.fields(found("vllm.renderers.params:TokenizeParams"))}
        assert "max_total_tokens" in fields

    def test_parsers_have_the_attributes_that_are_read_and_set(self) -> None:
        assert found("vllm.tool_parsers.tool_strict_level:ToolStrictLevel.FUNCTION")
        tool_parser = found("vllm.tool_parsers:ToolParser")
        assert tool_parser.supports_required_and_named in (True, False)
        assert tool_parser.default_tool_strict_level is None
        assert found("vllm.parser.engine.adapters:ParserEngineReasoningAdapter.reasoning_end_token_ids")
        state = found("vllm.parser.abstract_parser:StreamState")
        assert "engine_based" in {field.name for field in dataclasses.fields(state)}

    def test_the_size_of_the_cache_is_told(self) -> None:
        assert "kv_cache_size_tokens" in {field.name for field in dataclasses.fields(found("vllm.config:CacheConfig"))}

    def test_vllm_checks_no_grammar_on_the_event_loop(self) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import StructuredOutputsParams

        from workers.engine.vllm import compat

        model = found("vllm:AsyncEngineArgs")(model=demo_model().path, max_model_len=512)
        config = compat.config_of(model)
        compat.trust_grammars()
        params = SamplingParams(structured_outputs=StructuredOutputsParams(structural_tag='{"no": "tag"}'))
        params.verify(config.model_config, None, config.structured_outputs_config, compat.tokenizer_of(config))
        assert params.structured_outputs is not None
        assert vars(params.structured_outputs)["_backend"] == "xgrammar"

    def test_a_step_of_the_second_model_runner_names_its_rows(self) -> None:
        context = found("vllm.v1.worker.gpu.sample.logits_processor:LogitsContext")
        names = {"idx_mapping_np", "expanded_idx_mapping", "pos"}
        assert names <= set(context.__annotations__)

    def test_vllm_finds_the_executor_by_its_path(self) -> None:
        from workers.engine.vllm import compat

        module, _, name = compat.IN_CORE_EXECUTOR.rpartition(".")
        assert found(f"{module}:{name}") is compat.InCore
        assert issubclass(compat.InCore, found("vllm.v1.executor:Executor"))

    def test_vllm_finds_the_cpus_worker_by_its_path(self) -> None:
        from workers.engine.vllm import compat

        config = compat.config_of(found("vllm:AsyncEngineArgs")(model=demo_model().path, max_model_len=512))
        module, _, name = config.parallel_config.worker_cls.rpartition(".")
        if compat.runs_on_cpu():
            assert name == "SeededCpuWorker"
        assert callable(found(f"{module}:{name}").sample_tokens)

    async def test_a_running_engine_has_what_its_end_needs(self, vllm_case: Case) -> None:
        llm = vllm_case.engine._loaded.llm  # type: ignore[attr-defined]
        assert callable(llm.output_processor.propagate_error)
        assert callable(llm.engine_core.resources.ctx.destroy)
        assert llm.output_handler is None or callable(llm.output_handler.cancel)
        assert llm.errored is False
        assert isinstance(llm.model_config.max_model_len, int)
        assert isinstance(llm.model_config.is_multimodal_model, bool)
        assert isinstance(llm.vllm_config.use_v2_model_runner, bool)
        assert llm.renderer.default_chat_tok_params is not None
        assert isinstance(llm.model_config.try_get_generation_config(), dict)
        assert hasattr(llm.model_config, "logits_processors")
