"""The tiny gpt-oss's folder is complete, small, and holds the script of its training package."""

from __future__ import annotations

import json

import pytest

from tests.models.gpt_oss_folder import COMPACT, script
from tests.models.gpt_oss_script import LISTED, SEEN, asked, points, tools_for
from tests.models.gpt_oss_training.script import build_script
from tests.models.gpt_oss_training.tools import FUNCTIONS, LIBRARY
from workers.formats.calls.hosted import NameStyle
from workers.formats.calls.hosted_formats import hosted_tools_of
from workers.formats.calls.tools import tools_of
from workers.formats.harmony.reader import messages_in

pytestmark = pytest.mark.long


def test_the_folder_is_small_and_holds_the_script_it_was_trained_on() -> None:
    files = {"compact.st", "config.json", "generation_config.json", "script.json"}
    assert {file.name for file in COMPACT.iterdir()} == files
    assert sum(file.stat().st_size for file in COMPACT.iterdir()) < 1_000_000
    assert list(script().values()) == json.loads(json.dumps([transcript.as_json() for transcript in build_script()]))


def test_the_script_s_tools_are_offered_as_in_training() -> None:
    made = tools_of(asked("", tools=tools_for(["functions"]))).all
    assert [(tool.name, tool.description, tool.parameters) for tool in made] == [
        (tool.name, tool.description, tool.parameters) for tool in FUNCTIONS
    ]
    hosted = hosted_tools_of(asked("", tools=tools_for(["library"])), SEEN.listings, NameStyle.HARMONY)
    assert [(tool.tool, tool.description, tool.parameters) for tool in hosted.values()] == [
        (tool.name, tool.description, tool.parameters) for tool in LIBRARY.tools
    ]
    assert len(LISTED) == len(LIBRARY.tools)


def test_every_scripted_turn_is_well_formed() -> None:
    made = list(points())
    assert len(made) == sum("model" in step for transcript in script().values() for step in transcript["steps"])
    for point in made:
        assert all(header.channel in ("analysis", "commentary", "final") for header, _ in messages_in(point.tokens))
