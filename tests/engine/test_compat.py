"""vLLM's internals are as workers/engine/vllm/compat expects them, and nothing else of the product uses any.

What is used is read off the code of compat: the names that it imports, their attributes, the attributes of variables
that are annotated with them, and the arguments that it passes. A failure here after an update of vLLM names the
internal that has changed.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import logging
import re
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from tests.engine.cases import Case, demo_model

PACKAGE = Path(__file__).parents[2] / "workers" / "engine" / "vllm"
COMPAT = sorted((PACKAGE / "compat").rglob("*.py"))
DOCUMENTED = ("vllm", "vllm.config", "vllm.exceptions", "vllm.inputs", "vllm.lora.request", "vllm.sampling_params")
"""Modules of vLLM's public interface."""
LLM = "vllm.v1.engine.async_llm.AsyncLLM"
LIVE = {LLM: "", "vllm.config.VllmConfig": "vllm_config", "vllm.config.ModelConfig": "model_config"}
"""Classes of which an object is looked at, by where an engine has it, with all that its attributes have in turn. Of
others the first attribute is."""


def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def imported(file: Path) -> dict[str, str]:
    """The names of vLLM's that a file has, each with its path."""
    froms = [node for node in ast.walk(tree(file)) if isinstance(node, ast.ImportFrom)]
    found = {each.name: f"{node.module}.{each.name}" for node in froms for each in node.names}
    return {name: path for name, path in found.items() if path.startswith("vllm.")}


def annotated(file: Path) -> Iterator[tuple[ast.AST, dict[str, str]]]:
    """Each function, with the classes of vLLM's that its variables are annotated with."""
    known = imported(file)
    for function in ast.walk(tree(file)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            pairs = [(arg.arg, arg.annotation) for arg in (*function.args.args, *function.args.kwonlyargs)]
            pairs += [
                (node.target.id, node.annotation)
                for node in ast.walk(function)
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
            ]
            named = {name: ast.unparse(kind).split(" | ") for name, kind in pairs if kind is not None}
            yield function, {name: known[kind] for name, kinds in named.items() for kind in kinds if kind in known}


def used() -> set[tuple[str, str]]:
    """The attributes of vLLM's that compat uses: the path of what has it, and the attribute, which may be a chain."""
    found = set()
    for file in COMPAT:
        scopes = [(tree(file), imported(file)), *annotated(file)]
        for scope, names in scopes:
            for node in ast.walk(scope):
                root, _, chain = ast.unparse(node).partition(".") if isinstance(node, ast.Attribute) else ("", "", "")
                if root in names and re.fullmatch(r"[\w.]+", chain):
                    found.add((names[root], chain))
    return found


def passed() -> set[tuple[str, str]]:
    """The functions and classes of vLLM's that compat calls, each with a name of an argument that it passes."""
    found = set()
    for file in COMPAT:
        for scope, names in [(tree(file), imported(file)), *annotated(file)]:
            for call in (node for node in ast.walk(scope) if isinstance(node, ast.Call)):
                root, _, chain = ast.unparse(call.func).partition(".")
                if root in names and names[root] not in LIVE and re.fullmatch(r"[\w.]*", chain):
                    path = ".".join(filter(None, (names[root], chain)))
                    found |= {(path, word.arg) for word in call.keywords if word.arg is not None}
    return found


def overridden() -> set[tuple[str, str]]:
    """The methods of vLLM's classes that those of compat replace."""
    found, classes = set(), dict[str, set[str]]()
    for file in COMPAT:
        for node in (each for each in ast.walk(tree(file)) if isinstance(each, ast.ClassDef)):
            bases = [ast.unparse(base) for base in node.bases]
            methods = {each.name for each in node.body if isinstance(each, ast.FunctionDef) and each.name[0] != "_"}
            classes[node.name] = methods.union(*(classes.get(base, ()) for base in bases))
            found |= {(path, name) for name in classes[node.name] for path in map(imported(file).get, bases) if path}
    return found


def object_at(path: str) -> Any:
    module, rest = path, ""
    while True:
        try:
            found = importlib.import_module(module)
            return attrgetter(rest)(found) if rest else found
        except ModuleNotFoundError:
            module, _, name = module.rpartition(".")
            rest = f"{name}.{rest}" if rest else name


def has(owner: Any, name: str) -> bool:
    """Whether a module, an object or the objects of a class have an attribute."""
    if hasattr(owner, name):
        return True
    classes = inspect.getmro(owner) if isinstance(owner, type) else ()
    own = [each for each in classes if each.__module__.startswith("vllm")]
    return any(
        name in vars(each).get("__annotations__", {}) or re.search(rf"self\.{name}\b[^=\n]*=", inspect.getsource(each))
        for each in own
    )


def imported_modules(file: Path) -> Iterator[str]:
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module


def test_only_compat_imports_vllms_internals() -> None:
    files = [file for file in PACKAGE.rglob("*.py") if file not in COMPAT]
    assert len(files) > 20 and len(COMPAT) > 8
    for file in files:
        deep = {name for name in imported_modules(file) if name.split(".")[0] == "vllm"} - set(DOCUMENTED)
        assert not deep, f"{file.name} imports {deep}: let compat do that"


def test_only_compat_reads_attributes_of_an_engine() -> None:
    names = {chain.split(".")[0] for path, chain in used() if path == LLM} - {"shutdown"}
    assert {"renderer", "model_config", "errored"} <= names
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(tree(file)) if file not in COMPAT else ():
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) != "self":
                assert node.attr not in names, f"{file.name}: {ast.unparse(node)}"


PRIVATE = {"_stream_state"}
"""Private names of vLLM's parsers that are used: how calls as a JSON list are read."""


def test_no_module_touches_private_attributes_of_others() -> None:
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(tree(file)):
            if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
                if file in COMPAT and node.attr in PRIVATE:
                    continue
                assert isinstance(node.value, ast.Name) and node.value.id == "self", f"{file.name}:{node.lineno}"


@pytest.mark.vllm
@pytest.mark.filterwarnings("ignore")  # vLLM's own, at import
class TestInternals:
    def test_each_name_attribute_and_argument_that_is_used_is_there(self) -> None:
        paths = {path for file in COMPAT for path in imported(file).values()}
        looked_at = [(path, name.split(".")[0]) for path, name in used() | overridden() if path not in LIVE]
        missing = [f"{path}.{name}" for path, name in looked_at if not has(object_at(path), name)]
        for path, name in passed():
            parameters = inspect.signature(object_at(path)).parameters
            fields = getattr(object_at(path), "model_fields", {})
            takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
            if name not in parameters and name not in fields and not takes_any:
                missing.append(f"{path}({name}=...)")
        assert (missing, len(paths) > 30, len(used()) > 60) == ([], True, True)

    async def test_a_running_engine_has_what_is_read_of_it(self, vllm_case: Case) -> None:
        llm = vllm_case.engine._loaded.llm  # type: ignore[attr-defined]
        chains = {".".join(filter(None, (LIVE[path], chain))) for path, chain in used() if path in LIVE}
        assert len(chains) > 30
        for chain in chains:
            found = llm
            for name in chain.split("."):
                found = None if found is None else getattr(found, name)  # a task, say, that has not begun

    def test_an_environment_variable_that_vllm_does_not_read_is_refused(self) -> None:
        from workers.engine.vllm.compat import changed, machine

        machine.check_variables(["VLLM_LOGGING_LEVEL"])
        with pytest.raises(changed.VllmChanged, match="it does not read VLLM_NO_SUCH_THING"):
            machine.check_variables(["VLLM_NO_SUCH_THING"])

    def test_what_is_replaced_must_be_there(self) -> None:
        from workers.engine.vllm.compat.changed import VllmChanged, expect_text, replace_in

        owner = SimpleNamespace(old=1)
        replace_in(owner, "old", 2)
        with pytest.raises(VllmChanged, match="SimpleNamespace has no 'new'"):
            replace_in(owner, "new", 2)
        with pytest.raises(VllmChanged, match="logging has no 'Failed core"):
            expect_text(logging, "Failed " + "core proc(s): ")
        assert vars(owner) == {"old": 2}

    def test_parsers_whose_attributes_have_other_names_are_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from vllm.tool_parsers.functiongemma_tool_parser import FunctionGemmaToolParser

        from workers.engine.vllm.compat.changed import VllmChanged
        from workers.engine.vllm.compat.mending import mend

        monkeypatch.delattr(FunctionGemmaToolParser, "_parse_arguments")
        parser = FunctionGemmaToolParser.__new__(FunctionGemmaToolParser)
        with pytest.raises(VllmChanged, match="FunctionGemmaToolParser has no '_parse_arguments'"):
            mend(parser)

    def test_a_validator_that_is_still_called_is_refused(self) -> None:
        from vllm.sampling_params import StructuredOutputsParams

        from workers.engine.vllm.compat.changed import VllmChanged
        from workers.engine.vllm.compat.configuration import config_of, tokenizer_of
        from workers.engine.vllm.compat.masks import trust_grammars

        config = config_of(object_at("vllm.AsyncEngineArgs")(model=demo_model().path, max_model_len=512))
        tokenizer = tokenizer_of(config)
        trust_grammars(config, tokenizer)
        with (
            mock.patch("vllm.SamplingParams.verify", side_effect=ValueError("no tag")),
            pytest.raises(VllmChanged, match=r"it checks grammars \(no tag\)"),
        ):
            trust_grammars(config, tokenizer)
        assert StructuredOutputsParams(structural_tag="{}").structural_tag == "{}"

    def test_a_prompt_that_is_not_refused_for_its_length_is_noticed(self) -> None:
        from workers.engine.vllm.compat import renderer
        from workers.engine.vllm.compat.changed import VllmChanged

        params = object_at("vllm.renderers.params.TokenizeParams")(max_total_tokens=100)
        names = renderer._names_of_too_long(params, SimpleNamespace(max_chars_per_token=100))
        assert names == {"input_text", "input_tokens"}
        with (
            mock.patch.object(type(params), "apply_post_tokenization"),
            pytest.raises(VllmChanged, match="it takes a prompt that is too long"),
        ):
            renderer._names_of_too_long(params, SimpleNamespace(max_chars_per_token=100))

    def test_a_prompt_of_an_unknown_kind_is_refused(self) -> None:
        from workers.engine.vllm.compat.changed import VllmChanged
        from workers.engine.vllm.compat.renderer import has_media

        assert [has_media({}), has_media({"type": "token"}), has_media({"type": "multimodal"})] == [False, False, True]
        with pytest.raises(VllmChanged, match="it makes prompts of the type 'enc_dec'"):
            has_media({"type": "enc_dec"})

    def test_the_defaults_are_those_of_vllm_serve(self) -> None:
        """Those of this machine may be the same in every context, so vLLM's are replaced."""
        from vllm import AsyncEngineArgs
        from vllm.usage.usage_lib import UsageContext

        from workers.engine.vllm.compat.configuration import config_of

        defaults = {UsageContext.OPENAI_API_SERVER: 768}, {UsageContext.OPENAI_API_SERVER: 384}
        args = AsyncEngineArgs(model=demo_model().path, max_model_len=512)
        with mock.patch.object(AsyncEngineArgs, "get_batch_defaults", return_value=defaults):
            scheduler = config_of(args).scheduler_config
        assert (scheduler.max_num_batched_tokens, scheduler.max_num_seqs) == (768, 384)

    def test_a_killed_process_is_told_from_a_failed_start(self) -> None:
        from workers.engine.vllm.compat.processes import was_killed

        message = "Engine core initialization failed. See root cause above. Failed core proc(s): {}"
        assert was_killed(RuntimeError(message.format("{'EngineCore': -9}")))
        assert was_killed(RuntimeError(message.format("{}")))
        assert not was_killed(RuntimeError(message.format("{'EngineCore': 1}")))

    def test_vllm_finds_our_classes_by_their_paths(self) -> None:
        from workers.engine.vllm.compat import configuration, machine, masks, processes
        from workers.engine.vllm.compat.plugin import longhaul_forcing

        assert issubclass(object_at(processes.IN_CORE_EXECUTOR), object_at("vllm.v1.executor.Executor"))
        assert callable(object_at(configuration.SEEDED_CPU_WORKER).sample_tokens)
        assert {object_at(masks.class_path(asynchronous=each)) for each in (False, True)} == {
            masks.BudgetScheduler,
            masks.AsyncBudgetScheduler,
        }
        assert longhaul_forcing.class_path(second_model_runner=False) == f"{longhaul_forcing.__name__}:ForcedPrefix"
        if machine.runs_on_cpu():
            from workers.engine.vllm.arguments import engine_args

            worker = configuration.config_of(engine_args(demo_model())).parallel_config.worker_cls
            assert worker == configuration.SEEDED_CPU_WORKER
