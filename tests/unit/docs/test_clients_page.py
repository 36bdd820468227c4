"""docs/clients.md has each client that is tested, with the version that is tested."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")
TESTS = ROOT / "tests" / "clients"
TESTS_OF = {
    "Codex CLI": "codex",
    "opencode": "opencode",
    "Open WebUI": "open_webui",
    "openai (Python)": "openai openai_chat",
    "openai-agents (Python)": "agents",
    "LangChain (Python)": "langchain",
    "LiteLLM": "litellm",
    "AI SDK": "ai_sdk",
    "openai (JavaScript)": "openai_js",
    "openai-agents (JavaScript)": "agents_js",
    "LangChain (JavaScript)": "langchain_js",
    "pydantic-ai": "pydantic_ai",
    "instructor": "instructor",
    "llama-index": "llama_index",
    "dspy": "dspy",
    "llm": "llm",
    "Langfuse and OpenInference": "tracers",
    "any, by the OpenAPI description": "openapi",
}
"""What a row of "What works" is tested by: a file, or several."""
_FILE = re.compile(r"`(tests/clients/test_\w+\.py)`((?: \(`test_\w+`(?:, `test_\w+`)*\))?)")


def rows(heading: str) -> list[list[str]]:
    """The rows of the table under a heading."""
    section = PAGE.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line] for line in lines[2:]]


def installed() -> set[str]:
    """Each package that the tests of clients have, with its version."""
    pins = (ROOT / "config" / "requirements" / "dev.txt").read_text(encoding="utf-8")
    node = json.loads((TESTS / "node" / "package.json").read_text(encoding="utf-8"))
    python = re.findall(r"^([\w.-]+)==(\S+)", pins, re.MULTILINE)
    return {
        f"{name} {version}"
        for name, version in [*python, *node["dependencies"].items(), *node["optionalDependencies"].items()]
    }


def test_every_client_that_is_tested_has_its_row() -> None:
    assert [re.sub(r"\[(.+)\].*", r"\1", row[0]) for row in rows("What works")] == list(TESTS_OF)
    names = {f"test_{name}.py" for files in TESTS_OF.values() for name in files.split()}
    assert names == {path.name for path in TESTS.glob("test_*.py")}


def test_every_limit_names_tests_that_exist() -> None:
    for row in rows("What does not work, and whose limit it is"):
        for path, names in _FILE.findall(row[-1]):
            named = re.findall(r"`(test_\w+)`", names)
            assert named, f"{row[0]}: name the tests of {path}"
            text = (ROOT / path).read_text(encoding="utf-8")
            assert [name for name in named if f"def {name}(" not in text] == []


def test_every_row_has_the_version_that_is_installed() -> None:
    named = {package for row in rows("What works") for package in row[1].split(", ") if package}
    assert named - installed() == set()


def test_every_client_has_its_lines() -> None:
    headings = set(re.findall(r"^### (.+)$", PAGE, re.MULTILINE))
    linked = set(re.findall(r"^\| \[([^\]]+)\]", PAGE, re.MULTILINE))
    assert linked == headings


def test_the_lock_file_has_every_pin_by_hash_and_no_address() -> None:
    """Addresses would tie the tests to one registry."""
    lock = json.loads((TESTS / "node" / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    package = json.loads((TESTS / "node" / "package.json").read_text(encoding="utf-8"))
    assert lock.pop("")["dependencies"] == package["dependencies"]
    assert [name for name, entry in lock.items() if "resolved" in entry or "integrity" not in entry] == []
