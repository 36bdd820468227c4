"""What a template shows is proven by vLLM's own rendering, and what is shaped for it is rendered. No engine starts."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from config.shaping.conversations import TOOLS_SHOWN
from config.shaping.shape import AS_SENT, Shaping, shaped
from tests.engine.cases import demo_model
from workers.engine import resolved
from workers.engine.base import EngineError
from workers.engine.template_efforts import EFFORTS

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("ignore")]  # vLLM's own warnings, at import

STRICT = """
{%- if not messages | selectattr('role', 'equalto', 'user') | list %}{{ raise_exception('No user query.') }}{% endif %}
{%- if tools %}{{ tools | tojson }}{% endif %}
{%- for message in messages %}
{%- if message.role == 'system' and not loop.first %}{{ raise_exception('System message must be first.') }}{% endif %}
{{- '<|im_start|>' + message.role + '\n' }}
{%- if message.role == 'assistant' %}{{ message.thinking + '' }}{% endif %}
{{- message.content }}
{%- for call in message.tool_calls or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}
"""
AS_PARTS = STRICT.replace(
    "message.content }}", "message.content[0].text if message.role != 'tool' else message.content }}"
)
DEMO_EFFORTS = {effort: "none" if effort in ("none", "minimal") else "medium" for effort in EFFORTS}


def folder_with(tmp_path: Path, template: str) -> str:
    folder = tmp_path / "model"
    shutil.copytree(demo_model().path, folder)
    (folder / "chat_template.jinja").write_text(template)
    return str(folder)


@contextmanager
def rendering_of(path: str) -> Iterator[Any]:
    from vllm.renderers import renderer_from_config

    from workers.engine.vllm.arguments import engine_args
    from workers.engine.vllm.compat.configuration import config_of
    from workers.engine.vllm.rendering import Rendering

    config = config_of(engine_args(demo_model(path=path)))
    renderer = renderer_from_config(config)
    try:
        llm = SimpleNamespace(renderer=renderer, model_config=config.model_config)
        rendering = Rendering(llm, {})
        rendering._llm = llm
        yield rendering
    finally:
        renderer.shutdown()


def test_the_demo_model_is_shown_whatever_is_sent() -> None:
    with rendering_of(demo_model().path) as rendering:
        assert (rendering.proof.shaping, rendering.proof.refused) == (AS_SENT, {})
        assert rendering.efforts == DEMO_EFFORTS


@pytest.mark.parametrize(
    ("template", "shaping"),
    [
        (STRICT, Shaping(thinking=True, begun=True, moved_later=True)),
        (AS_PARTS, Shaping(parts=True, thinking=True, begun=True, moved_later=True)),
    ],
)
def test_a_strict_template_is_shown_what_it_takes_in_the_form_that_it_takes(
    tmp_path: Path, template: str, shaping: Shaping
) -> None:
    with rendering_of(folder_with(tmp_path, template)) as rendering:
        assert (rendering.proof.shaping, rendering.proof.refused) == (shaping, {})
        assert rendering.efforts == dict.fromkeys(EFFORTS)
        sent = [{"role": role, "content": role} for role in ("system", "assistant", "system")]
        made = rendering._renderer.render(shaped(sent, shaping), {"add_generation_prompt": True})
        assert "Instructions of the developer:\n\nsystem" in rendering.tokenizer.decode(made["prompt_token_ids"])


def test_a_template_that_shows_no_message_is_the_operators_fault(tmp_path: Path) -> None:
    with rendering_of(folder_with(tmp_path, "{{ raise_exception('never') }}")) as rendering:
        assert rendering.proof.broken == "its chat template refuses it (never)"
        assert not rendering.is_callers_fault(EngineError(), [])


GUESSED = frozenset({"tool_parser", "reasoning_parser"})


def fitted(tmp_path: Path, template: str, tool_parser: str) -> tuple[Any, str]:
    model = demo_model(path=folder_with(tmp_path, template), tool_parser=tool_parser, guessed=GUESSED)
    from workers.engine.vllm.loading import fitted as fit

    fitting, reasons = fit(model)
    return fitting, "; ".join(reasons)


def test_the_parser_is_chosen_that_reads_what_the_template_writes(tmp_path: Path) -> None:
    assert fitted(tmp_path / "1", STRICT, "hermes")[0].tool_parser == "hermes"
    other, reason = fitted(tmp_path / "2", STRICT, "pythonic")
    assert (other.tool_parser, reason) == (
        "hermes",
        "tool_parser hermes, reasoning_parser qwen3: pythonic does not read a call",
    )


def test_a_model_whose_calls_no_parser_reads_calls_no_tools_and_says_why(tmp_path: Path) -> None:
    model, reason = fitted(tmp_path, STRANGE, "hermes")
    assert model.tool_parser is None
    assert model.proof.refused == {TOOLS_SHOWN: "hermes does not read a call"}
    assert reason == "tool_parser none after all: hermes does not read a call"


STRANGE = STRICT.replace("<tool_call>\n{", "<<{").replace("}\n</tool_call>", "}>>")


@pytest.mark.parametrize(
    ("template", "parser", "said"),
    [
        (STRICT, "pythonic", "pythonic does not read a call; tool_parser hermes, reasoning_parser qwen3 would"),
        (STRANGE, "hermes", "hermes does not read a call; no parser that is known reads all of it"),
    ],
)
def test_a_parser_of_the_models_file_stays_and_the_log_warns_of_what_it_does_not_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, template: str, parser: str, said: str
) -> None:
    from workers.worker import registered_as

    entry = replace(demo_model(path=folder_with(tmp_path, template)), tool_parser=parser, guessed=frozenset())
    model, _ = resolved(replace(entry, proof=None))
    assert model.proof is not None
    assert (model.tool_parser, model.proof.refused) == (parser, {})
    engine: Any = SimpleNamespace(proof=model.proof, efforts=None, can_continue=lambda sampling: True)
    registered_as(model, engine)
    [record] = [each for each in caplog.records if each.name == "longhaul.worker"]
    assert (record.levelname, record.getMessage()) == (
        "WARNING",
        f"{model.name} may lose calls of tools, by the parsers of the models file: {said}",
    )


def test_a_parser_of_the_models_file_that_reads_all_is_proven_and_nothing_is_said(tmp_path: Path) -> None:
    entry = replace(demo_model(path=folder_with(tmp_path, STRICT)), guessed=frozenset(), proof=None)
    model, _ = resolved(replace(entry, tool_parser="hermes", reasoning_parser="qwen3"))
    assert model.proof is not None
    assert list(model.proof.lines()) == []


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ("{city:<escape>Oslo<escape>,days:3}", {"city": "Oslo", "days": 3}),
        ("{q:<escape>123<escape>}", {"q": "123"}),
        (
            "{deep:true,near:{lat:1.5},tags:[<escape>a, b:c<escape>]}",
            {"deep": True, "near": {"lat": 1.5}, "tags": ["a, b:c"]},
        ),
        ("{}", {}),
        ("city:<escape>Oslo<escape>", {}),
        ("{city:<escape>Os}", {}),
    ],
)
def test_function_gemmas_arguments_keep_their_types(written: str, arguments: dict[str, Any]) -> None:
    from workers.engine.vllm.compat.mending import function_gemma_arguments

    assert function_gemma_arguments(written) == arguments
