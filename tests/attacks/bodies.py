"""Attacks by what a body says: JSON, text, numbers, maps and lists, grammars, images."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from typing import Any

from tests.attacks.attack import Attack
from tests.attacks.memory import LARGE
from tests.attacks.target import Json, Target

FIELDS = ("input", "tools", "text", "reasoning", "include", "metadata", "stop", "conversation", "tool_choice")


def _body(target: Target, fields: str) -> bytes:
    """A request whose further fields are written out, so that they need not be JSON that Python would write."""
    return f'{{"model":"{target.model}","max_output_tokens":4,{fields}}}'.encode("utf-8", "surrogatepass")


async def deep_json(target: Target, count: int) -> None:
    for opening, closing in (("[", "]"), ('{"a":', "}"), ('[{"a":', "}]")):
        deep = opening * count + "1" + closing * count
        await target.body(_body(target, f'"input":{deep}'))
        await target.body(_body(target, f'"input":"x","tools":[{{"type":"function","name":"f","parameters":{deep}}}]'))


async def many_keys(target: Target, count: int) -> None:
    keys = ",".join(f'"k{number}":1' for number in range(count))
    await target.body(_body(target, f'"input":"x",{keys}'))
    await target.body(_body(target, f'"input":"x","metadata":{{{keys}}}'))
    await target.body(_body(target, '"input":"x",' + ",".join(['"user":"a"'] * count)))


async def odd_numbers(target: Target, count: int) -> None:
    for number in ("1e400", "-1e400", "NaN", "Infinity", "9" * count, "0." + "9" * count, "1e-999999999", "-0")[:8]:
        for field in ("temperature", "max_output_tokens", "seed", "top_k", "queue_timeout", "top_logprobs"):
            await target.body(_body(target, f'"input":"x","{field}":{number}').replace(b'"max_output_tokens":4,', b""))


async def odd_text(target: Target, count: int) -> None:
    """NUL, lone surrogates, bytes that are no UTF-8, marks that combine without end, byte order marks."""
    texts: tuple[str, ...] = (
        r"\u0000",
        r"\ud800",
        r"\udfff\ud800",
        "\ud800",
        "e" + "\u0301" * 10_000,
        "\U000e0001" * 5000,
    )
    texts += ("\u202e" * 5000, "\ufeff", r"\uFFFF", "\u200d\U0001f468" * 5000, "\ufdfa" * 10_000)
    for text in texts[:count]:
        for field in ("input", "instructions", "user", "previous_response_id", "cache_salt", "prompt_cache_key"):
            await target.body(_body(target, f'"{field}":"{text}"' + (',"input":"x"' if field != "input" else "")))
    for raw in (b"\xff\xfe", b"\xef\xbb\xbf{}", b"\xc0\xaf", b"\x00", "{}".encode("utf-16")):
        await target.body(raw)


async def odd_paths(target: Target, count: int) -> None:
    """Text in URLs that Postgres cannot hold, or that is no id."""
    for end in ("%00", "%ff", "%ED%A0%80", "..%2f..", "'%3b--", "a" * 8000, "%F0%9F%92%A3", "%0d%0aX-A:b")[:count]:
        for path in (
            f"/v1/responses/{end}",
            f"/v1/responses/resp_{end}/input_items",
            f"/v1/responses/resp_x?stream=true&starting_after={end}",
            f"/v1/responses/resp_x/input_items?after={end}",
            f"/v1/conversations/conv_{end}",
            f"/v1/models/{end}",
        ):
            await target.send("GET", path)


async def cursors_of_items(target: Target, count: int) -> None:
    """Cursors that are no ids, on a conversation that is there."""
    conversation = (await target.send("POST", "/v1/conversations", json={}))["id"]
    for cursor in ("%00", "%ff", "a" * 8000, "%ED%A0%80")[:count]:
        await target.send("GET", f"/v1/conversations/{conversation}/items?after={cursor}")
        await target.send("GET", f"/v1/conversations/{conversation}/items?limit={cursor}")
        await target.send("GET", f"/v1/conversations/{conversation}/items/{cursor}")


async def huge_metadata(target: Target, count: int) -> None:
    for metadata in ({"k": "v" * count}, {"k" * count: "v"}, {str(n): "v" for n in range(count // 10)}):
        await target.create(metadata=metadata)


async def client_metadata_flood(target: Target, count: int) -> None:
    for fields in ({"k": "v" * 60_000}, {"k": "v" * 8_000_000}, {str(n): "" for n in range(100_000)}):
        await target.repeat(count, lambda _, fields=fields: target.create(client_metadata=fields))  # type: ignore[misc]


async def large_bodies(target: Target, count: int) -> None:
    """`count` bodies just above and just below the limit."""
    await target.repeat(count, lambda _: target.body(b" " * 8_388_609))
    await target.repeat(count, lambda _: target.body(b" " * 8_388_607 + b"{"))


async def stop_lists(target: Target, count: int) -> None:
    await target.create(stop=["x" * count] * 16)
    await target.create(stop=[f"s{number}" for number in range(count)])
    await target.create(stop_token_ids=list(range(count)), min_tokens=2)
    await target.create(stop_token_ids=list(range(200)), min_tokens=2)
    await target.create(stop_token_ids=[10**30], min_tokens=10**30)


async def bad_words(target: Target, count: int) -> None:
    await target.create(bad_words=[f"word{number}" for number in range(count)])
    await target.create(bad_words=["w " * count])
    await target.create(bad_words=["a bad word"] * 2000)


async def token_maps(target: Target, count: int) -> None:
    await target.create(logit_bias={str(number): 1 for number in range(count)})
    await target.create(logit_bias={"9" * 5000: 1})
    await target.create(logit_bias={"-1": 1, "99999999999": 1})
    await target.create(allowed_token_ids=list(range(count)))
    await target.create(allowed_token_ids=[])
    await target.create(allowed_token_ids=[-1, 10**18])


async def template_arguments(target: Target, count: int) -> None:
    deep: Json = {}
    for _ in range(50):
        deep = {"a": deep}
    every: list[Json] = [{"messages": []}, {"tools": "x" * count}, {f"k{n}": n for n in range(count)}, deep]
    for arguments in every:
        await target.create(chat_template_kwargs=arguments)


async def json_schemas(target: Target, count: int) -> None:
    """Patterns, bounds and alternatives that a compiler of grammars would unroll."""
    kinds: list[Json] = [
        {"type": "string", "pattern": f"(a{{1,{count}}}){{1,{count}}}"},
        {"type": "string", "pattern": "(a|a)*" * count},
        {"type": "string", "pattern": "[" + "".join(map(chr, range(0x4E00, 0x4E00 + count))) + "]+"},
        {"type": "string", "minLength": count * 1000, "maxLength": 10**9},
        {"type": "array", "items": {"type": "string"}, "minItems": count * 1000},
        {"anyOf": [{"const": f"c{number}"} for number in range(count)]},
        {"enum": ["e" * 100 + str(number) for number in range(count)]},
        {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(count)}},
        {"$ref": "#/$defs/a"},
    ]
    for kind in kinds:
        properties = {"a": kind}
        schema = {
            "type": "object",
            "properties": properties,
            "required": ["a"],
            "additionalProperties": False,
            "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "array", "items": {"$ref": "#/$defs/a"}}]}},
        }
        await target.create(text={"format": {"type": "json_schema", "name": "s", "schema": schema, "strict": True}})


def _custom(syntax: str, definition: str) -> Json:
    return {"type": "custom", "name": "c", "format": {"type": "grammar", "syntax": syntax, "definition": definition}}


async def lark_bombs(target: Target, count: int) -> None:
    """Rules that double; rules that call themselves; a definition without end."""
    doubling = "\n".join(f"r{number}: r{number + 1} r{number + 1}" for number in range(count)) + f'\nr{count}: "a"'
    for definition in ("start: r0\n" + doubling, "start: start start", 'start: "a"~1..1000000', "start: " + "(" * 5000):
        await target.create(tools=[_custom("lark", definition)], tool_choice="required")
    await target.create(tools=[_custom("lark", 'start: "' + "x" * 7_000_000 + '"')], tool_choice="required")


async def regex_bombs(target: Target, count: int) -> None:
    for pattern in (f"(a{{1,{count}}}){{1,{count}}}", "(a+)+" * count, "(" * count, "a" * 7_000_000, "(?=a)\\1"):
        await target.create(tools=[_custom("regex", pattern)], tool_choice="required")


def _png(width: int, height: int, rows: bytes) -> str:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    data = b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(data).decode()


def _pictures(urls: list[str]) -> list[Json]:
    return [{"role": "user", "content": [{"type": "input_image", "image_url": url} for url in urls]}]


async def image_bombs(target: Target, count: int) -> None:
    """Small files that say that they are large; files that are none."""
    bomb = _png(60_000, 60_000, b"\0" * 10_000_000)
    for url in (
        bomb,
        _png(2**31 - 1, 2**31 - 1, b""),
        _png(0, 0, b""),
        "data:image/png;base64,AAAA",
        "file:///etc/passwd",
    ):
        await target.create(input=_pictures([url] * count))


async def tiny_images(target: Target, count: int) -> None:
    await target.create(input=_pictures([_png(1, 1, b"\0\0\0\0")] * count))


async def unknown_everything(target: Target, count: int) -> None:
    """Values of every JSON type in every known field."""
    values: tuple[Any, ...] = (None, True, 0, -1, 1.5, "x", [], {}, [None], {"a": None}, [[]], "", "\0", 10**40)
    for value in values[:count]:
        for field in FIELDS:
            await target.body(_body(target, f'"input":"x","{field}":{json.dumps(value)}'))


ATTACKS = (
    Attack("deep-json", "deep JSON", deep_json, 1_000_000, 10_000, {"400 invalid_json"}, demand=LARGE),
    Attack(
        "many-keys",
        "many and repeated keys",
        many_keys,
        300_000,
        5000,
        {"200", "400 invalid_value", "400 metadata"},
        demand=LARGE,
    ),
    Attack(
        "odd-numbers",
        "numbers such as 1e400",
        odd_numbers,
        1_000_000,
        5000,
        {
            "200",
            "400 invalid_json",
            "400 max_output_tokens",
            "400 seed",
            "400 top_k",
            "400 top_logprobs",
            "400 queue_timeout",
        },
        demand=LARGE,
    ),
    Attack(
        "odd-text",
        "Unicode, NUL, surrogates",
        odd_text,
        11,
        11,
        {"200", "400 invalid_json", "400 previous_response_id", "400 user", "400 cache_salt", "400 prompt_cache_key"},
    ),
    Attack("odd-paths", "22: text in URLs", odd_paths, 8, 8, {"400 after", "400 starting_after", "404"}),
    Attack("cursors-of-items", "22: after=%00", cursors_of_items, 4, 4, {"200", "400 after", "400 limit", "404"}),
    Attack("huge-metadata", "metadata", huge_metadata, 5_000_000, 50_000, {"400 metadata"}, demand=LARGE),
    Attack(
        "client-metadata-flood",
        "client_metadata",
        client_metadata_flood,
        50,
        1,
        {"200", "400 client_metadata"},
        demand=LARGE,
    ),
    Attack("large-bodies", "the body's limit", large_bodies, 100, 2, {"400 invalid_json", "413"}, demand=LARGE),
    Attack(
        "stop-lists",
        "3: stop tokens with min_tokens",
        stop_lists,
        100_000,
        2000,
        {"200", "400 stop", "400 stop_token_ids"},
        demand=LARGE,
    ),
    Attack("bad-words", "3: tokens of bad words", bad_words, 100_000, 2000, {"400 bad_words"}, demand=LARGE),
    Attack(
        "token-maps",
        "logit_bias and allowed_token_ids",
        token_maps,
        200_000,
        2000,
        {"400 allowed_token_ids", "400 logit_bias"},
        demand=LARGE,
    ),
    Attack(
        "template-arguments",
        "chat_template_kwargs",
        template_arguments,
        100_000,
        2000,
        {"200", "400 chat_template_kwargs"},
        demand=LARGE,
    ),
    Attack(
        "json-schemas",
        "7: JSON schemas with large patterns",
        json_schemas,
        5000,
        100,
        {"200"},
        full_only={"400 text"},
        demand=LARGE,
    ),
    Attack("lark-bombs", "7: Lark grammars", lark_bombs, 2000, 40, {"200", "400 input"}, demand=LARGE),
    Attack("regex-bombs", "7: regular expressions", regex_bombs, 5000, 100, {"200", "400 input"}, demand=LARGE),
    Attack("image-bombs", "29: images", image_bombs, 20, 2, {"400 input"}, demand=LARGE),
    Attack("tiny-images", "29: images", tiny_images, 10_000, 500, {"400 input"}, demand=LARGE),
    Attack(
        "unknown-everything",
        "values of other types",
        unknown_everything,
        14,
        14,
        {"200", "404", *(f"400 {field}" for field in FIELDS)},
    ),
)
