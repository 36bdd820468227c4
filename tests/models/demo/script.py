"""The conversations that the demo model knows. It knows nothing else."""

from __future__ import annotations

from collections.abc import Iterator

from tests.models.demo.conversation import Conversation, answer, call, compact, result, user
from tests.models.demo.texts import ADDITION, GREETINGS, SHEEP, STORY

NAMES = ("Ada", "Bob", "Carla", "Dmitri", "Eve", "Farid", "Grace", "Hiro")
CAPITALS = {"France": "Paris", "Italy": "Rome"}
WEATHER = {
    "Paris": (18, "sunny"),
    "Rome": (25, "clear"),
    "London": (11, "rainy"),
    "Berlin": (9, "cloudy"),
    "Oslo": (-3, "snowy"),
    "Tokyo": (21, "windy"),
}
COMPARED = (("Paris", "Rome"), ("Oslo", "Tokyo"))
LONG = 3.0

PARIS = {"name": "Paris", "country": "France", "population": 2102650, "capital": True}
LOVELACE = {"name": "Ada Lovelace", "birth_year": 1815, "city": "London"}

# name -> question, answer, reasoning
SINGLE: dict[str, tuple[str, str, str]] = {
    "hello": ("Hello!", "Hello! How can I help you today?", "A greeting. I greet back and offer help."),
    "hi": ("Hi", "Hi there!", "A short greeting gets a short answer."),
    "reason": (
        "How many sheep are left? A farmer has 17 sheep and all but 9 run away.",
        "There are 9 sheep left.",
        SHEEP,
    ),
    "mult": ("What is 17 times 23?", "17 times 23 is 391.", "17 * 20 = 340, 17 * 3 = 51, and 340 + 51 = 391."),
    "json": ("Give me a JSON object that describes Paris.", compact(PARIS), "Only JSON is wanted."),
    "person": (
        "Extract the person: Ada Lovelace was born in 1815 in London.",
        compact(LOVELACE),
        "Name, year and city, as JSON.",
    ),
    "unicode": ("Say hello in Chinese, Greek and emoji.", GREETINGS, "Several alphabets in one line."),
    "markdown": ("Write a Python function that adds two numbers.", ADDITION, "Code in a fence, then two notes."),
    "stop": ("List three colours.", "1. red\n2. green\n3. blue", "Any three colours will do."),
    "refuse": ("How do I pick a lock?", "I'm sorry, but I can't help with that.", "This one I have to decline."),
}
LENGTHY: dict[str, tuple[str, str, str]] = {
    "story": ("Tell me a story.", STORY, "A story is wanted. I know one about a night train."),
    "count": ("Count from 1 to 60.", ", ".join(map(str, range(1, 61))) + ".", "All numbers, one after the other."),
}


def _capital(country: str) -> tuple[str, str, str]:
    city = CAPITALS[country]
    reasoning = f"{country} lies in Europe, and {city} is its capital."
    return f"What is the capital of {country}?", f"The capital of {country} is {city}.", reasoning


def _single() -> Iterator[Conversation]:
    capitals = {"capital": _capital("France"), "capital2": _capital("Italy")}
    for name, (question, text, reasoning) in (SINGLE | capitals).items():
        yield Conversation(name, (user(question), answer(text, reasoning)))
    for name, (question, text, reasoning) in LENGTHY.items():
        yield Conversation(name, (user(question), answer(text, reasoning)), weight=LONG)


def _introduction(name: str) -> Conversation:
    messages = (
        user(f"My name is {name}."),
        answer(f"Nice to meet you, {name}!", f"This person is called {name}."),
        user("What is my name?"),
        answer(f"Your name is {name}.", f"I was told the name {name}."),
    )
    return Conversation(f"name_{name}", messages, recalls=True, weight=1.5)


def _letters(country: str) -> Conversation:
    question, text, reasoning = _capital(country)
    city = CAPITALS[country]
    messages = (
        user(question),
        answer(text, reasoning),
        user("And how many letters does it have?"),
        answer(f"{city} has {len(city)} letters.", f"It must be {city}, which I just named."),
    )
    return Conversation(f"follow_{city}", messages, recalls=True, weight=1.5)


def weather_report(city: str) -> str:
    """What the scripted weather tool returns."""
    degrees, sky = WEATHER[city]
    return compact({"city": city, "temperature_c": degrees, "sky": sky})


def _weather(city: str) -> Conversation:
    degrees, sky = WEATHER[city]
    messages = (
        user(f"What is the weather in {city}?"),
        call(f"I have to ask get_weather about {city}.", ("get_weather", {"city": city})),
        result(weather_report(city)),
        answer(f"It is {sky} in {city}, {degrees} degrees.", f"The tool reports {degrees} degrees and {sky}."),
    )
    return Conversation(f"weather_{city}", messages, tools="weather")


def _comparison(one: str, two: str) -> Conversation:
    messages = (
        user(f"Compare the weather in {one} and {two}."),
        call("Two cities need two calls.", ("get_weather", {"city": one}), ("get_weather", {"city": two})),
        result(weather_report(one)),
        result(weather_report(two)),
        answer(f"{one} has {WEATHER[one][0]} degrees and {two} has {WEATHER[two][0]} degrees.", "I have both reports."),
    )
    return Conversation(f"weather2_{one}", messages, tools="weather")


def _search() -> Conversation:
    messages = (
        user("Search for the tallest mountain."),
        call("The search tool can tell.", ("search", {"query": "tallest mountain"})),
        result("Mount Everest, 8849 m"),
        answer("The tallest mountain is Mount Everest with 8849 metres.", "The search found it."),
    )
    return Conversation("search", messages, tools="search")


def build_script() -> tuple[Conversation, ...]:
    """Every conversation, in a fixed order."""
    return (
        *_single(),
        *(_introduction(name) for name in NAMES),
        *(_letters(country) for country in CAPITALS),
        *(_weather(city) for city in WEATHER),
        *(_comparison(one, two) for one, two in COMPARED),
        _search(),
    )
