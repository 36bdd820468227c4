"""What is chosen for the models in a folder: `python -m tests.families FOLDER` prints a line for each of its folders.

Each of them has what a model's folder has: `config.json`, and a chat template where transformers looks for it.
A line has the folder, its `model_type`, both parsers, where an answer starts (within thoughts, behind them, or free to
have some) with the switch absent, on and off, how a call of the probe is written, and why.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from config.chat_template import ChatTemplate, TemplateError
from config.families import reading_of
from config.model_files import read_files

_BEGIN, _END = (re.compile(form) for form in (r"<(\w+:)?think\w*>\s*$|\[THINK\]\s*$", r"</(\w+:)?think\w*>\s*$"))
_SWITCHES = ({}, {"enable_thinking": True, "thinking": True}, {"enable_thinking": False, "thinking": False})


def table(folder: Path) -> Iterator[str]:
    for model in sorted(path for path in folder.iterdir() if path.is_dir()):
        files = read_files(model, model)
        reading = reading_of(files)
        starts = "/".join(_start(files.chat, switches) for switches in _SWITCHES)
        call = " ".join(files.chat.call.split())[:80]
        parsers = f"{reading.tool_parser or 'none':16} {reading.reasoning_parser or 'none':14}"
        yield f"{model.name:40} {files.model_type!s:18} {parsers} {starts:18} {call:80} {reading.reason}"


def _start(template: ChatTemplate, switches: dict[str, bool]) -> str:
    try:
        prompt = template.render([{"role": "user", "content": "Hello!"}], **switches)
    except TemplateError:
        return "error"
    return "open" if _BEGIN.search(prompt) else "closed" if _END.search(prompt) else "free"


if __name__ == "__main__":
    for line in table(Path(sys.argv[1])):
        print(line)  # noqa: T201
