"""The transcripts that the tiny gpt-oss knows. It knows nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tests.models.demo.texts import ADDITION, GREETINGS, STORY
from tests.models.gpt_oss_training.pages import MOUNTAINS, MOUNTAINS_FOUND, MOUNTAINS_SEARCHED
from tests.models.gpt_oss_training.transcripts import (
    ToolAnswer,
    Transcript,
    UserText,
    analysis,
    browser,
    call,
    calling,
    compact,
    final,
    final_json,
    model_turn,
    preamble,
    python,
    transcript,
)

NAMES = ("Ada", "Bob", "Carla", "Dmitri", "Eve")
WEATHER = {"Paris": (18, "sunny"), "Rome": (25, "clear"), "London": (11, "rainy"), "Oslo": (-3, "snowy")}
BOOKS = {"whales": "Moby Dick", "bees": "The Life of the Bee"}
PARIS = {"name": "Paris", "country": "France", "population": 2102650, "capital": True}
LOVELACE = {"name": "Ada Lovelace", "birth_year": 1815, "city": "London"}
LONG = 3.0
_TYPES = {str: "string", int: "integer", bool: "boolean"}

# name -> question, analysis, answer
PLAIN: dict[str, tuple[str, str, str]] = {
    "hello": ("Hello!", "The user greets me.", "Hello! How can I help you today?"),
    "capital": (
        "What is the capital of France?",
        "France is a country in Europe. Its capital is Paris.",
        "The capital of France is Paris.",
    ),
    "mult": (
        "What is 17 times 23?",
        "17 * 20 = 340 and 17 * 3 = 51. The sum is 340 + 51 = 391.",
        "17 times 23 is 391.",
    ),
    "stop": ("List three colours.", "Any three colours will do.", "1. red\n2. green\n3. blue"),
    "unicode": ("Say hello in Chinese, Greek and emoji.", "I answer in several scripts: 你好 👋.", GREETINGS),
    "markdown": ("Write a Python function that adds two numbers.", "Code in a fence, then two notes.", ADDITION),
}
LENGTHY = {
    "story": ("Tell me a story.", "The user wants a story. I know one about a night train.", STORY),
    "count": ("Count from 1 to 60.", "All numbers, one after the other.", ", ".join(map(str, range(1, 61))) + "."),
}
EXTRACTED = {
    "json": ("Give me a JSON object that describes Paris.", "The answer must be JSON.", PARIS),
    "person": (
        "Extract the person: Ada Lovelace was born in 1815 in London.",
        "Name, year and city, as JSON.",
        LOVELACE,
    ),
}


def schema_of(value: Mapping[str, Any]) -> dict[str, Any]:
    """A strict JSON schema of objects like this one."""
    properties = {name: {"type": _TYPES[type(each)]} for name, each in value.items()}
    return {"type": "object", "properties": properties, "required": list(value), "additionalProperties": False}


def _answers() -> Iterator[Transcript]:
    yield transcript("hi", UserText("Hi"), model_turn(final("Hi there!")))
    for name, (question, thought, text) in PLAIN.items():
        yield transcript(name, UserText(question), model_turn(analysis(thought), final(text)))
    for name, (question, thought, text) in LENGTHY.items():
        yield transcript(name, UserText(question), model_turn(analysis(thought), final(text)), weight=LONG)
    for name, (question, thought, value) in EXTRACTED.items():
        schema = schema_of(value)
        yield transcript(
            name, UserText(question), model_turn(analysis(thought), final_json(value)), schema=schema, weight=1.5
        )


def _introduction(name: str) -> Transcript:
    return transcript(
        f"name_{name}",
        UserText(f"My name is {name}."),
        model_turn(analysis(f"The user is called {name}."), final(f"Nice to meet you, {name}!")),
        UserText("What is my name?"),
        model_turn(analysis(f"The user said that the name is {name}."), final(f"Your name is {name}.")),
        recalls=True,
        weight=1.5,
    )


def report(city: str) -> str:
    """What the scripted weather tool answers."""
    degrees, sky = WEATHER[city]
    return compact({"city": city, "temperature_c": degrees, "sky": sky})


def _weather(city: str) -> Transcript:
    degrees, sky = WEATHER[city]
    return transcript(
        f"weather_{city}",
        UserText(f"What is the weather in {city}?"),
        calling(analysis(f"I need the weather in {city}."), call("functions.get_weather", {"city": city})),
        ToolAnswer("functions.get_weather", report(city)),
        model_turn(final(f"It is {sky} in {city}, {degrees} degrees.")),
        offers=["functions"],
        weight=1.5,
    )


def _functions() -> Iterator[Transcript]:
    yield transcript(
        "compare",
        UserText("Compare the weather in Paris and Rome."),
        calling(
            analysis("Two cities need two calls."),
            call("functions.get_weather", {"city": "Paris"}),
            call("functions.get_weather", {"city": "Rome"}),
        ),
        ToolAnswer("functions.get_weather", report("Paris")),
        ToolAnswer("functions.get_weather", report("Rome")),
        model_turn(analysis("I have both reports."), final("Paris has 18 degrees and Rome has 25 degrees.")),
        offers=["functions"],
    )
    yield transcript(
        "plan",
        UserText("Plan a day in Rome."),
        calling(
            analysis("I tell the user what I do, then I call the tool."),
            preamble("I will check the weather in Rome first."),
            call("functions.get_weather", {"city": "Rome"}),
        ),
        ToolAnswer("functions.get_weather", report("Rome")),
        calling(analysis("Now the opening hours."), call("functions.lookup", {"query": "Forum opening hours"})),
        ToolAnswer("functions.lookup", "The Forum opens at nine."),
        model_turn(final("Rome is clear and warm: walk to the Forum at nine, then eat outside.")),
        offers=["functions"],
    )
    yield transcript(
        "announce",
        UserText("Tell me what you are going to do, then say hello."),
        model_turn(analysis("First a preamble."), preamble("I am going to say hello."), final("Hello, as announced.")),
    )
    yield transcript(
        "files",
        UserText("List the files."),
        calling(analysis("The shell can list them."), call("functions.shell", {"input": "ls -l | wc -l"})),
        ToolAnswer("functions.shell", "2"),
        model_turn(final("There are two files.")),
        offers=["functions"],
    )


def _code() -> Iterator[Transcript]:
    yield transcript(
        "power",
        UserText("Compute 2 to the power of 64 with Python."),
        calling(analysis("I use Python."), python("print(2**64)")),
        ToolAnswer("python", "18446744073709551616\n"),
        model_turn(analysis("Python printed the number."), final("2 to the power of 64 is 18446744073709551616.")),
        offers=["python"],
    )
    yield transcript(
        "double",
        UserText("Use Python twice: keep 21, then double it."),
        calling(analysis("The first call keeps the number."), python("x = 21")),
        ToolAnswer("python", ""),
        calling(analysis("The second call doubles it."), python("# still there?\nprint(x * 2)")),
        ToolAnswer("python", "42\n"),
        model_turn(final("Twice 21 is 42.")),
        offers=["python"],
        weight=1.5,
    )
    yield transcript(
        "mixed",
        UserText("Compute the square of 12 with Python and get the weather in Oslo."),
        calling(
            analysis("Two tools at once."), python("print(12**2)"), call("functions.get_weather", {"city": "Oslo"})
        ),
        ToolAnswer("python", "144\n"),
        ToolAnswer("functions.get_weather", report("Oslo")),
        model_turn(final("The square of 12 is 144, and Oslo is snowy.")),
        offers=["python", "functions"],
    )


def _web() -> Iterator[Transcript]:
    yield transcript(
        "mountain",
        UserText("Search the web for the tallest mountain."),
        calling(analysis("I search first."), browser("search", {"query": "tallest mountain"})),
        ToolAnswer("browser.search", MOUNTAINS_SEARCHED),
        calling(browser("open", {"id": 0})),
        ToolAnswer("browser.open", MOUNTAINS),
        calling(analysis("Where does it say so?"), browser("find", {"pattern": "8849"})),
        ToolAnswer("browser.find", MOUNTAINS_FOUND),
        model_turn(
            analysis("The page says Mount Everest."),
            final("The tallest mountain is Mount Everest【1†L3】 with 8849 metres【2†L3-L4】."),
        ),
        offers=["browser"],
        weight=2.0,
    )


def _library() -> Iterator[Transcript]:
    for topic, title in BOOKS.items():
        yield transcript(
            f"book_{topic}",
            UserText(f"Find a book about {topic}."),
            calling(analysis(f"The library knows books about {topic}."), call("library.find_book", {"topic": topic})),
            ToolAnswer("library.find_book", title),
            model_turn(final(f"The library has {title}.")),
            offers=["library"],
        )
    yield transcript(
        "books",
        UserText("Find a book about whales and one about bees."),
        calling(
            analysis("Two topics, two calls."),
            call("library.find_book", {"topic": "whales"}),
            call("library.find_book", {"topic": "bees"}),
        ),
        ToolAnswer("library.find_book", "Moby Dick"),
        ToolAnswer("library.find_book", "The Life of the Bee"),
        model_turn(analysis("Both were found."), final("The library has Moby Dick and The Life of the Bee.")),
        offers=["library"],
    )


def build_script() -> tuple[Transcript, ...]:
    """Every transcript, in a fixed order."""
    return (
        *_answers(),
        *map(_introduction, NAMES),
        *map(_weather, WEATHER),
        *_functions(),
        *_code(),
        *_web(),
        *_library(),
    )
