"""Families of models: which of vLLM's parsers read their answers, as one table.

What a model writes follows the chat template that it was trained with, so the marks in its template decide, and how it
writes a call of a probe; `model_type` only where the template does not tell. vLLM itself chooses the tokenizer, the
renderer and the format of the weights.

A reasoning parser does no harm to a model that does not reason: it reads thoughts only if the prompt opens them or the
answer begins with their mark (`workers.engine.vllm.output.thoughts`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from config.chat_template import KEY, NAME, ChatTemplate
from config.shaping.proof import Proof, proven
from config.shaping.rendering import renderer
from config.shaping.shape import AS_SENT, Shaping

Format = Literal["chat", "harmony"]

_DEEPSEEK = "<\uff5cAssistant\uff5c>"
_EXAMPLES = "vLLM's example tool_chat_template_"
ANY_REASONING, _THOUGHTS = "qwen3", "</?think>"
"""The parser for models whose chat template has these marks, and whose family has none of its own."""
_GRANITE = ("granite", "granitemoe", "granitemoehybrid", "granitemoeshared", "granite_swa", "granitemoe_swa")


@dataclass(frozen=True, slots=True)
class Family:
    """A row of the table. A model belongs to the first row whose `types` and `marks` fit its files."""

    name: str
    tool_parser: str | None = None
    """Parser for models whose chat template shows tools."""
    reasoning_parser: str | None = None
    """Parser for models whose chat template has `thinks`. None: `ANY_REASONING`."""
    types: tuple[str, ...] = ()
    """The values of `model_type`; none: any."""
    marks: tuple[str, ...] = ()
    """Texts that the chat template has, all of them."""
    call: str = ""
    """How its chat template writes a call of the probe (a regular expression); any, if it shows no calls."""
    thinks: str = _THOUGHTS + "|enable_thinking"
    """A regular expression."""
    template: bool = True
    """Whether its prompts are made by its chat template; vLLM makes the others, with tools and reasoning."""
    format: Format = "chat"
    note: str = ""
    """Notes for operators."""


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
    Family("Mistral with <think>", "mistral", marks=("[TOOL_CALLS]", "<think>")),
    Family(
        "Mistral", "mistral", "mistral", marks=("[TOOL_CALLS]",), call=r"\[TOOL_CALLS\]\s*[^\[\s]", thinks=r"\[THINK\]"
    ),
    # vLLM's parser for Mistral reads lists of calls with Mistral's own tokenizer alone.
    Family("Mistral's lists of calls", "xlam", "mistral", marks=("[TOOL_CALLS]",), thinks=r"\[THINK\]"),
    Family("DeepSeek V3.1", "deepseek_v31", "deepseek_v3", marks=(_DEEPSEEK, "thinking"), call=f"begin\uff5c>{NAME}"),
    Family("DeepSeek V3 and R1", "deepseek_v3", "deepseek_r1", marks=(_DEEPSEEK,)),
    Family("Kimi K2", "kimi_k2", "kimi_k2", marks=("<|im_middle|>",)),
    Family("GLM 4.5 and later", "glm45", "glm45", marks=("[gMASK]", "<arg_key>")),
    Family("MiniMax M2", "minimax_m2", "minimax_m2", marks=("<minimax:tool_call>",)),
    Family("Seed-OSS", "seed_oss", "seed_oss", marks=("<seed:tool_call>",), thinks="<seed:think>"),
    Family("Gemma 4", "gemma4", "gemma4", marks=("<|turn>",), thinks=r"<\|channel>"),
    Family("FunctionGemma", "functiongemma", marks=("<start_function_call>",)),
    Family("Apertus", "apertus", marks=("<|tools_prefix|>",)),
    Family("LongCat 2", marks=("<longcat_arg_key>",), note="no parser of vLLM reads its calls"),
    Family("LongCat", "longcat", marks=("<longcat_tool_call>",)),
    Family("K2 Horizon", "k2_horizon", "k2_horizon", marks=("<ifm|tool_call",), thinks=""),
    Family("Granite 4.2", "qwen3_coder", "granite_thinking_parser", types=_GRANITE, marks=("<function=",)),
    Family("Granite 4", "granite4", marks=("<|start_of_role|>", "<tools>")),
    Family("Granite 3", "granite", "granite", marks=("<|start_of_role|>",), thinks="my thought process"),
    Family("MiniCPM 5", "minicpm5", marks=("<function name=",)),
    Family("GigaChat 3", "gigachat3", marks=("<|role_sep|>",), call="function.call"),
    Family("InternLM 2.5", "internlm", marks=("<|action_start|>", "<|plugin|>")),
    Family("Muse Glimmer", "muse_glimmer", "muse_glimmer", marks=("<atem:function_calls>",), thinks=""),
    Family("Cohere MoE", "cohere_command4", "cohere_command4", marks=("<|START_TEXT|>",), thinks=""),
    Family(
        "Cohere Command", "cohere_command3", "cohere_command3", marks=("<|START_RESPONSE|>",), call="ACTION", thinks=""
    ),
    # Llama's own templates ask for JSON, and vLLM's examples for Python.
    Family("Llama 4 in Python", "llama4_pythonic", marks=("<|header_start|>", "func_name1(")),
    Family("Llama 4", marks=("<|header_start|>",), note=f"it calls tools with {_EXAMPLES}llama4_pythonic.jinja"),
    Family("xLAM", "xlam", marks=("calls in a single JSON array",)),
    Family("Calls in Python", "pythonic", marks=("func_name1(",)),
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
    Family("Jamba", "jamba", types=("jamba",), marks=("<tool_calls>",)),
    Family("Granite 20B", "granite-20b-fc", types=("gpt_bigcode",), marks=("<function_call>",)),
    Family("Dots 3", "dots", types=("dots3", "dots3_note")),
    Family("PLaMo 3", "plamo3", "plamo3", types=("plamo3",)),
    Family("K2 Horizon", "k2_horizon", "k2_horizon", types=("k2_horizon",), thinks="think"),
    Family("GLM 4.1V", None, "glm45", types=("glm4v",), thinks=""),
    Family("Phi-4-mini", types=("phi3",), marks=("<|tool|>",), note="vLLM's phi4_mini_json loses every answer"),
    # Forms that many share.
    Family(
        "Qwen3-Coder's form", "qwen3_coder", "qwen3", marks=("<tool_call>", "<function="), call=f"<function={NAME}>"
    ),
    Family("GLM's form", "glm45", marks=("<tool_call>", "<arg_key>"), call=f"<tool_call>{NAME}\\s*<arg_key>{KEY}"),
    Family("Hermes' form", "hermes", "qwen3", marks=("<tool_call>", "arguments"), call=r"<tool_call>\s*\{"),
)


SHAPINGS: Mapping[str, Shaping] = {"kimi_k2": Shaping(numbered=True), "mistral": Shaping(short=True)}
"""By tool parser: what is tried first. A template may take other ids of calls than those that its model knows."""


def first_shaping(tool_parser: str | None) -> Shaping:
    return SHAPINGS.get(tool_parser or "", AS_SENT)


@dataclass(frozen=True)
class ModelFiles:
    """The facts in a model's files about its family."""

    model_type: str | None = None
    template: str = ""
    """Its chat templates; of Mistral's own tokenizer, the marks that it writes."""
    is_mistral: bool = False
    """Whether it has Mistral's own tokenizer, which makes prompts without a chat template."""
    default_sampling: Mapping[str, float] = field(default_factory=dict)
    templates: Mapping[str, str] = field(default_factory=dict)
    """The chat templates by name, if it has several."""

    @cached_property
    def chat(self) -> ChatTemplate:
        return ChatTemplate(self.templates or {"default": "" if self.is_mistral else self.template})

    def proof(self, reading: Reading, *, images: bool) -> Proof | None:
        """What its chat template shows; None if its prompts are made by code. Raises ImportError where there is no
        jinja."""
        made_by_code = any(family.types and not family.template and _fits(family, self) for family in FAMILIES)
        if self.is_mistral or made_by_code or not self.template:
            return None
        return proven(renderer(self.chat), first_shaping(reading.tool_parser), images=images)


@dataclass(frozen=True, slots=True)
class Reading:
    """How a model's prompts are written and its answers read."""

    format: Format
    tool_parser: str | None
    reasoning_parser: str | None
    reason: str
    """Why, in a few words for operators."""
    default_sampling: Mapping[str, float] = field(default_factory=dict)
    """Parameters that the model's makers recommend (`generation_config.json`)."""


UNKNOWN = "its files name no family that is known"


def reading_of(files: ModelFiles) -> Reading:
    """The reading of the model with these files. A model of no known family neither calls tools nor reasons."""
    family = next((family for family in FAMILIES if _fits(family, files)), None)
    if family is None:
        parser = ANY_REASONING if re.search(_THOUGHTS, files.template) else None
        return Reading("chat", None, parser, UNKNOWN, files.default_sampling)
    return Reading(
        format=family.format,
        tool_parser=family.tool_parser,
        reasoning_parser=_reasoning_parser(family, files),
        reason="; ".join(filter(None, (_why(family, files), _probed(family, files), family.note))),
        default_sampling=files.default_sampling,
    )


def _fits(family: Family, files: ModelFiles) -> bool:
    of_type = not family.types or files.model_type in family.types
    if not of_type or not all(mark in files.template for mark in family.marks):
        return False
    call = files.chat.call if family.call else ""
    return not call or re.search(family.call, call) is not None


def _reasoning_parser(family: Family, files: ModelFiles) -> str | None:
    if family.reasoning_parser is None:
        return ANY_REASONING if family.template and re.search(_THOUGHTS, files.template) else None
    return family.reasoning_parser if not family.template or re.search(family.thinks, files.template) else None


def _why(family: Family, files: ModelFiles) -> str:
    seen = [f"model_type {files.model_type}"] if family.types else []
    seen += [f"{mark} in its {'tokenizer' if files.is_mistral else 'chat template'}" for mark in family.marks[:1]]
    return f"{family.name}: {', '.join(seen)}"


def _probed(family: Family, files: ModelFiles) -> str:
    """The findings of the probes of the chat template."""
    if not family.template or files.is_mistral:
        return ""
    return "a call was probed" if files.chat.call else "its chat template shows no calls"
