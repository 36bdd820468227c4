"""The served models as Codex reads them: the `models` array of `GET /v1/models?client_version=...`.

Codex refuses the whole list if one field is missing or has a value that it does not know. Tried with codex-cli 0.169.
The fields that only older versions need are `supports_reasoning_summaries` and `supports_parallel_tool_calls`.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.protocol.types import Json
from app.responses.models.cards import ModelCard
from app.responses.models.catalog import capabilities_of

EFFORTS = {
    "none": "Answers without reasoning",
    "low": "Reasons briefly",
    "medium": "Reasons as much as most tasks need",
    "high": "Reasons at length",
}
"""The efforts that every version of Codex knows, each with the words for its menu."""

MAX_TOOL_OUTPUT_TOKENS = 10_000
"""Length at which Codex cuts one tool's output; in a small context a sixteenth of the context."""

INSTRUCTIONS = """\
You are a coding agent. You work in Codex CLI, a program in the user's terminal, on the files of the user's machine.

# How to work
- Keep going until the user's request is done, then stop. Ask only if you cannot find out by yourself.
- Look before you change: read the files that matter, and follow the AGENTS.md files that apply to them.
- Run commands with the tool for shell commands. Prefer `rg` for searching, and read large files in parts.
- Change files with `apply_patch` if you have that tool. Keep a change small and in the style of the code around it.
- Do not undo changes that are not yours, do not commit unless you are asked to, and delete nothing without need.
- After a change run what shows that it works: the narrowest tests first, then the formatter and the linter.
- If a command is refused by the sandbox, ask for permission in the way that the tool offers, or find another way.

# How to answer
- Before a group of tool calls, say in one short sentence what you are about to do.
- At the end say what you changed and where, what you checked, and what is left. Name files with their paths.
- Be brief and plain. Never claim a result that you did not see.
"""
"""What Codex tells a model whose entry it takes from a server; Codex's own prompt is for its own models.

`model_instructions_file` in Codex's config.toml replaces it.
"""


def context_limits(length: int | None) -> Json:
    """Returns the fields by which Codex keeps a session within a context of `length` tokens.

    Before a user's message and between steps, Codex compacts if the last usage and the outputs since then have reached
    `auto_compact_token_limit`. Its default, 90 % of the context, is too late for what comes after the check, where T is
    the limit of one output. Codex counts four bytes a token, and code has three, so an output has up to 4/3 T:

        the user's message, or the outputs of the last step    2 2/3 T: two outputs, or four if the rest is short
        the model's answer, and then the summary               2 1/3 T, and the tools, which a summary's prompt lacks

    So Codex compacts 5 T before the end: in 32,768 tokens at 22,528, with outputs of 2,048. Its instructions and tools
    take 7,300. Before the API compacts, Codex shortens outputs of a history above `effective_context_window_percent`:
    one that grew beyond the limit by many outputs at once.
    """
    if length is None:
        return {"context_window": None, "truncation_policy": {"mode": "tokens", "limit": MAX_TOOL_OUTPUT_TOKENS}}
    output = min(MAX_TOOL_OUTPUT_TOKENS, length // 16)
    limit = length - 5 * output
    return {
        "context_window": length,
        "auto_compact_token_limit": limit,
        "effective_context_window_percent": limit * 100 // length,
        "truncation_policy": {"mode": "tokens", "limit": output},
    }


def codex_model(card: ModelCard, position: int) -> Json:
    """Returns the model as Codex's catalogue has it; a lower `position` stands higher in Codex's menu."""
    model = card.model
    efforts = [effort for effort in EFFORTS if effort in card.efforts]
    reasons, calls = capabilities_of(model).reasoning, bool(card.tool_types)
    return {
        "slug": model.name,
        "display_name": model.name,
        "description": None,
        "default_reasoning_level": _default(efforts),
        "supported_reasoning_levels": [{"effort": effort, "description": EFFORTS[effort]} for effort in efforts],
        "supports_reasoning_summaries": reasons,
        "default_reasoning_summary": "auto" if reasons else "none",
        "shell_type": "default" if calls else "disabled",
        "apply_patch_tool_type": "freeform" if calls else None,
        "supports_parallel_tool_calls": calls,
        "experimental_supported_tools": [],
        "visibility": "list",
        "supported_in_api": True,
        "priority": position,
        "upgrade": None,
        "base_instructions": INSTRUCTIONS,
        "support_verbosity": model.verbosity,
        "default_verbosity": None,
        "input_modalities": card.input_modalities,
        **context_limits(model.context_length),
    }


def _default(efforts: Sequence[str]) -> str | None:
    """The effort that Codex sends if its user chose none: medium, or the least that reasons."""
    reasoning = [effort for effort in efforts if effort != "none"]
    return "medium" if "medium" in reasoning else next(iter(reasoning), None)
