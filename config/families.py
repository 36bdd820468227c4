"""Families of models: which of vLLM's parsers read their answers, as one table.

What a model writes follows the chat template that it was trained with, so the marks in its template decide, and
`model_type` only where the template does not tell. vLLM itself chooses the tokenizer, the renderer and the format of
the weights.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

Format = Literal["chat", "harmony"]

_QWEN = (
    *("qwen2", "qwen2_moe", "qwen2_vl", "qwen2_5_vl", "qwen3", "qwen3_moe", "qwen3_next", "qwen3_vl", "qwen3_vl_moe"),
    *("qwen3_5", "qwen3_5_moe", "qwen3_omni_moe", "smollm3"),
)
_DEEPSEEK = "<\uff5cAssistant\uff5c>"
_GRANITE = ("granite", "granitemoe", "granitemoehybrid", "granitemoeshared", "granite_swa", "granitemoe_swa")


@dataclass(frozen=True, slots=True)
class Family:
    """A row of the table. A model belongs to the first row whose `types` and `marks` fit its files."""

    name: str
    tool_parser: str | None = None
    """Of models whose chat template shows tools."""
    reasoning_parser: str | None = None
    """Of models whose chat template has `thinks`."""
    types: tuple[str, ...] = ()
    """The values of `model_type`; none: any."""
    marks: tuple[str, ...] = ()
    """Texts that the chat template has, all of them."""
    thinks: str = "<think>"
    template: bool = True
    """Whether its prompts are made by its chat template; vLLM makes the others, with tools and reasoning."""
    format: Format = "chat"


# Within a group, the order matters: the first row that fits is taken.
FAMILIES: tuple[Family, ...] = (
    Family("gpt-oss", types=("gpt_oss",), template=False, format="harmony"),
    # Their prompts are made by code in vLLM, which chooses it by the architecture.
    Family("DeepSeek V4.1", "deepseek_v41", "deepseek_v41", types=("deepseek_v41",), template=False),
    Family("DeepSeek V4", "deepseek_v4", "deepseek_v4", types=("deepseek_v4",), template=False),
    Family("DeepSeek V3.2", "deepseek_v32", "deepseek_v3", types=("deepseek_v32",), template=False),
    Family("Kimi K3", "kimi_k3", "kimi_k3", types=("kimi_k3",), template=False),
    Family("Inkling", "inkling", "inkling", types=("inkling", "inkling_mm_model"), template=False),
    # Marks that no other family has.
    Family("Mistral", "mistral", "mistral", marks=("[TOOL_CALLS]",), thinks="[THINK]"),
    Family("DeepSeek V3.1", "deepseek_v31", "deepseek_v3", marks=(_DEEPSEEK, "thinking")),
    Family("DeepSeek V3 and R1", "deepseek_v3", "deepseek_r1", marks=(_DEEPSEEK,)),
    Family("Kimi K2", "kimi_k2", "kimi_k2", marks=("<|im_middle|>",)),
    Family("GLM 4.5 and later", "glm45", "glm45", marks=("[gMASK]", "<arg_key>")),
    Family("MiniMax M2", "minimax_m2", "minimax_m2", marks=("<minimax:tool_call>",)),
    Family("Seed-OSS", "seed_oss", "seed_oss", marks=("<seed:tool_call>",), thinks="<seed:think>"),
    Family("Gemma 4", "gemma4", "gemma4", marks=("<|tool_call>",), thinks="<|channel>"),
    Family("FunctionGemma", "functiongemma", marks=("<start_function_call>",)),
    Family("Apertus", "apertus", marks=("<|tools_prefix|>",)),
    Family("LongCat", "longcat", marks=("<longcat_tool_call>",)),
    Family("Granite 4.2", "qwen3_coder", "granite_thinking_parser", types=_GRANITE, marks=("<function=",)),
    Family("Granite 4", "granite4", marks=("<|start_of_role|>", "<tools>")),
    Family("Granite 3", "granite", "granite", marks=("<|start_of_role|>",), thinks="my thought process"),
    # Llama's own templates ask for JSON, and vLLM's examples for Python.
    Family("Llama 4 in Python", "llama4_pythonic", marks=("<|header_start|>", "func_name1(")),
    Family("Llama 4", "llama4_json", marks=("<|header_start|>", '"parameters"')),
    Family("Llama 3 in Python", "pythonic", marks=("<|start_header_id|>", "func_name1(")),
    Family("Llama 3", "llama3_json", marks=("<|start_header_id|>", '"parameters": dictionary')),
    # Their templates have marks of others, or their calls have none.
    Family("MiniMax M3", "minimax_m3", "minimax_m3", types=("minimax_m3_vl", "minimax_m3_text"), thinks="mm:think"),
    Family("HY V4", "hy_v4", "hy_v4", types=("hy_v4",), thinks="<think"),
    Family("HY V3", "hy_v3", "hy_v3", types=("hy_v3",), thinks="<think"),
    Family("Hunyuan A13B", "hunyuan_a13b", "hunyuan_a13b", types=("hunyuan_v1_moe",)),
    Family("Ling 3", "ling3", "ling3", types=("bailing_moe_v3", "bailing_moe_v3_vl")),
    Family("Laguna", "poolside_v1", "poolside_v1", types=("laguna",)),
    Family("ERNIE 4.5", "ernie45", "ernie45", types=("ernie4_5", "ernie4_5_moe", "ernie4_5_moe_vl")),
    Family("LFM2", "lfm2", types=("lfm2", "lfm2_moe", "lfm2_vl")),
    Family("Olmo 3", "olmo3", "olmo3", types=("olmo3", "olmo_hybrid")),
    Family("Step 3.5", "step3p5", "step3p5", types=("step3p5", "step3p7")),
    Family("Step 3", "step3", "step3", types=("step3_vl", "step3_text")),
    Family("MiMo V2", "mimo", "mimo", types=("mimo_v2_flash", "mimo_v2", "mimo_v2_omni")),
    Family("Nemotron 3", "qwen3_coder", "nemotron_v3", types=("nemotron_h", "nemotron_h_omni"), marks=("<function=",)),
    # Two forms that many share. Of other families, those whose reasoning is switched as Qwen's are read as Qwen's.
    Family("Qwen3-Coder and later", "qwen3_coder", "qwen3", types=_QWEN, marks=("<tool_call>", "<function=")),
    Family("Qwen3-Coder's form", "qwen3_coder", "qwen3", marks=("<tool_call>", "<function="), thinks="enable_thinking"),
    Family("Qwen 2.5, QwQ and Qwen3", "hermes", "qwen3", types=_QWEN, marks=("<tool_call>", "arguments")),
    Family("Hermes' form", "hermes", "qwen3", marks=("<tool_call>", "arguments"), thinks="enable_thinking"),
)


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """What a model's files say of its family."""

    model_type: str | None = None
    template: str = ""
    """Its chat templates; of Mistral's own tokenizer, the marks that it writes."""
    is_mistral: bool = False
    """Whether it has Mistral's own tokenizer, which makes prompts without a chat template."""
    default_sampling: Mapping[str, float] = field(default_factory=dict)

    @property
    def shows_tools(self) -> bool:
        return self.is_mistral or re.search(r"\btools\b", self.template) is not None


@dataclass(frozen=True, slots=True)
class Reading:
    """How a model's prompts are written and its answers read."""

    format: Format
    tool_parser: str | None
    reasoning_parser: str | None
    reason: str
    """Why, in a few words for operators."""
    default_sampling: Mapping[str, float] = field(default_factory=dict)
    """What its makers recommend (`generation_config.json`)."""


UNKNOWN = "its files name no family that is known"


def reading_of(files: ModelFiles) -> Reading:
    """The reading of the model with these files. A model of no known family neither calls tools nor reasons."""
    family = next((family for family in FAMILIES if _fits(family, files)), None)
    reading = Reading("chat", None, None, UNKNOWN, files.default_sampling)
    if family is None:
        return reading
    shows_tools = not family.template or files.shows_tools
    thinks = not family.template or family.thinks in files.template
    return replace(
        reading,
        format=family.format,
        tool_parser=family.tool_parser if shows_tools else None,
        reasoning_parser=family.reasoning_parser if thinks else None,
        reason=_why(family, files) + ("" if shows_tools else "; its chat template shows no tools"),
    )


def _fits(family: Family, files: ModelFiles) -> bool:
    of_type = not family.types or files.model_type in family.types
    return of_type and all(mark in files.template for mark in family.marks)


def _why(family: Family, files: ModelFiles) -> str:
    seen = [f"model_type {files.model_type}"] if family.types else []
    seen += [f"{mark} in its {'tokenizer' if files.is_mistral else 'chat template'}" for mark in family.marks[:1]]
    return f"{family.name}: {', '.join(seen)}"
