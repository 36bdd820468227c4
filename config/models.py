"""The served models and their MCP servers: `models.toml`, checked, as frozen data."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from config.families import Reading
from config.settings import ConfigError, Seconds, Settings
from config.shaping.proof import Proof
from config.tools import McpServer, ToolServerEntry, merge_servers, servers_of_file, servers_of_variable

AUTO: Final = "auto"
"""In place of a format or a parser: it follows from the model's files, which its worker reads."""
NONE: Final = "none"
"""In a models file, in place of a parser: the model calls no tools, or does not reason."""
Format = Literal["auto", "chat", "harmony"]
ParserName = Annotated[str, Field(min_length=1, max_length=100)]
Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[\w./:@+-]+$")]


VLLM: Final = "vllm"
VLLM_SERVER: Final = "vllm-server"
BY_VLLM: Final = frozenset((VLLM, VLLM_SERVER))
"""Engines whose prompts and parsers are vLLM's, by the model's files."""
EngineName = Annotated[str, Field(pattern=rf"^({VLLM}|{VLLM_SERVER}|[\w.]+:\w+)$")]
"""Or a class of another engine (workers/engine/base.py), as `module:Class`."""
DEFAULT_SLOTS: Final = 64


@dataclass(frozen=True, slots=True)
class Upstream:
    """Servers of one model that run elsewhere (`vllm serve --enable-scale-out`). Each worker drives one."""

    urls: tuple[str, ...]
    api_key: str | None = field(default=None, repr=False)
    """May name a variable of the worker's environment, as `${NAME}`."""
    slots: int = DEFAULT_SLOTS
    """Requests that one of them generates at once."""

    def only(self, url: str | None, api_key: str | None = None) -> Upstream:
        """That of one worker; None: the first. `api_key` is for an entry without one. Raises ConfigError."""
        if url is not None and url not in self.urls:
            raise ConfigError(f"LONGHAUL_UPSTREAM: no url {url!r} in the models file (it has {', '.join(self.urls)})")
        return replace(self, urls=(url or self.urls[0],), api_key=self.api_key or api_key)


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter: it has its own model name, and the workers of its base model serve it."""

    name: str
    path: str


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One model, and how a worker runs it."""

    name: str
    """The value of `model` in requests."""
    path: str
    """A folder on this machine, or a hub id that vLLM downloads."""
    queue: str
    """The Celery queue of its workers; no other model uses it."""
    engine: str
    """`vllm`, `vllm-server`, or a class, as `module:Class`."""
    context_length: int | None = None
    """The most tokens of prompt and output together; None: the limit of the model's own config."""
    engine_args: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of vLLM's AsyncEngineArgs, or of another engine."""
    chat_template_args: Mapping[str, Any] = field(default_factory=dict)
    default_sampling: Mapping[str, float] | None = field(default_factory=dict)
    """Sampling parameters for requests without them (`temperature`, `top_k`, ...); None: they follow from its files."""
    reasoning_parser: str | None = None
    """Name of vLLM's parser of the model's reasoning, or AUTO; None: the model does not reason."""
    tool_parser: str | None = None
    """Name of vLLM's parser of the model's tool calls, or AUTO; None: the model calls no tools."""
    revision: str | None = None
    """The commit, tag or branch of a hub id that vLLM downloads; None: the newest."""
    images: bool = False
    """Whether its input may contain images."""
    adapters: tuple[Adapter, ...] = ()
    base: str | None = None
    """The model whose workers serve this LoRA adapter; None: it is no adapter."""
    verbosity: bool = False
    """Whether its chat template supports `verbosity` (low, medium, high)."""
    queue_timeout_seconds: float | None = None
    """Seconds that a response may wait for a worker; None: the limit of the settings."""
    run_timeout_seconds: float | None = None
    """Seconds that a response may be in progress; None: the limit of the settings."""
    format: Format = "chat"
    """The prompt format: the chat template, gpt-oss's harmony (which brings its own parsers), or AUTO."""
    efforts: Mapping[str, str | None] | None = None
    """What becomes of each `reasoning.effort`, as its workers say (Engine.efforts); None: not known."""
    refusals: Mapping[str, str] = field(default_factory=dict)
    """Requests that it refuses, and why, as its workers proved (config/shaping/proof.py). `TOOLS_SHOWN`: tools."""
    proof: Proof | None = None
    """What its chat template shows, if that was proven before its engine starts."""
    guessed: frozenset[str] = frozenset()
    """The names of the parsers above that followed from its files."""
    upstream: Upstream | None = None
    """Where its engine runs, if that is `vllm-server`. `path` is its tokenizer's then."""

    @property
    def harmony(self) -> bool:
        return self.format == "harmony"

    @property
    def is_resolved(self) -> bool:
        """Whether nothing is left that follows from the model's files."""
        return self.default_sampling is not None and AUTO not in (self.format, self.tool_parser, self.reasoning_parser)

    def resolved(self, reading: Reading) -> ServedModel:
        """The model with `reading`, its files', wherever the models file leaves it open."""
        form = reading.format if self.format == AUTO else self.format
        sampling = reading.default_sampling if self.default_sampling is None else self.default_sampling
        if form == "harmony":
            return replace(self, format=form, tool_parser=None, reasoning_parser=None, default_sampling=sampling)
        return replace(
            self,
            format=form,
            default_sampling=sampling,
            guessed=frozenset(name for name in ("tool_parser", "reasoning_parser") if getattr(self, name) == AUTO),
            tool_parser=reading.tool_parser if self.tool_parser == AUTO else self.tool_parser,
            reasoning_parser=reading.reasoning_parser if self.reasoning_parser == AUTO else self.reasoning_parser,
        )


@dataclass(frozen=True, slots=True)
class ModelCatalog:
    """All models with workers, in the order of the file."""

    models: tuple[ServedModel, ...]
    tools: tuple[McpServer, ...] = ()
    """The MCP servers that run hosted tools."""
    permitted: frozenset[str] | None = None
    """Values of `model` that requests may have; None: all."""
    served: tuple[ServedModel, ...] = field(init=False, repr=False, compare=False)
    """All values of `model` in requests: the models, each followed by its adapters."""

    def __post_init__(self) -> None:
        served = (served for model in self.models for served in (model, *_adapters_of(model)))
        permitted = tuple(served for served in served if self.permitted is None or served.name in self.permitted)
        object.__setattr__(self, "served", permitted)

    def restricted(self, models: frozenset[str] | None, tools: frozenset[str] | None) -> ModelCatalog:
        """The same catalog for somebody who may use these `models` and these MCP servers, by label; None: all."""
        allowed = self.tools if tools is None else tuple(server for server in self.tools if server.label in tools)
        return replace(self, permitted=models, tools=allowed)

    def get(self, name: str) -> ServedModel | None:
        """The model or adapter of that name. An adapter has the queue of its base model."""
        return next((served for served in self.served if served.name == name), None)

    def choose(self, name: str | None) -> ServedModel:
        """The model that a worker serves: the named one, or the only one. Raises ConfigError."""
        if name is None and len(self.models) == 1:
            return self.models[0]
        names = ", ".join(model.name for model in self.models)
        if name is None:
            raise ConfigError(f"LONGHAUL_MODEL: name the model this worker serves (one of {names})")
        model = self.get(name)
        if model is None:
            raise ConfigError(f"LONGHAUL_MODEL: no model {name!r} in the models file (it has {names})")
        if model.base is not None:
            raise ConfigError(f"LONGHAUL_MODEL: {name!r} is an adapter; workers of {model.base!r} serve it")
        return model


def _adapters_of(model: ServedModel) -> Iterable[ServedModel]:
    return (replace(model, name=adapter.name, base=model.name, adapters=()) for adapter in model.adapters)


class DefaultSampling(BaseModel):
    """Parameters that an entry, or a model's makers, may set for requests without them."""

    model_config = ConfigDict(extra="forbid")

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = None


class _AdapterEntry(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    name: Name
    path: str = ""


Url = Annotated[str, Field(pattern=r"^https?://[^\s/@?#]+(/[^\s?#]*)?$")]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    name: Name
    path: str = ""
    revision: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    queue: Name | None = None
    context_length: Annotated[int, Field(ge=16)] | None = None
    engine: EngineName = VLLM
    engine_args: dict[str, Any] = {}
    chat_template_args: dict[str, Any] = {}
    default_sampling: DefaultSampling | None = None
    reasoning_parser: ParserName = AUTO
    tool_parser: ParserName = AUTO
    images: bool = False
    adapters: list[_AdapterEntry] = []
    verbosity: bool = False
    queue_timeout_seconds: Seconds | None = None
    run_timeout_seconds: Seconds | None = None
    format: Format = "auto"
    url: Url | Annotated[list[Url], Field(min_length=1)] | None = None
    api_key: Annotated[str, Field(min_length=1)] | None = None
    slots: Annotated[int, Field(ge=1, le=4096)] | None = None
    tokenizer: Annotated[str, Field(min_length=1)] | None = None


_AS_THEY_ARE = (
    *("name", "context_length", "engine", "engine_args", "chat_template_args", "revision", "images", "verbosity"),
    *("queue_timeout_seconds", "run_timeout_seconds"),
)
"""The fields of an entry that its model has, too."""


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    models: Annotated[list[_Entry], Field(min_length=1)]
    tool_servers: list[ToolServerEntry] = []


def _resolve(path: str, folder: Path) -> str:
    """The absolute path of a folder if `path` starts with `.` or `/`; otherwise a hub id.

    Only workers need the folder to be there: an API on another machine reads the same file.
    """
    return str((folder / path).resolve()) if path.startswith((".", "/")) else path


def require_engine(model: ServedModel) -> None:
    """Raises ConfigError if the model needs vLLM, and it is not installed here."""
    if model.engine in BY_VLLM and find_spec("vllm") is None:
        raise ConfigError(
            f"model {model.name!r}: there is no vLLM here; install longhaul-server[cpu], or [gpu] for NVIDIA's GPUs"
        )


def require_folders(model: ServedModel) -> None:
    """Raises ConfigError if a folder of the model, or of one of its adapters, is not on this machine."""
    adapters = () if model.upstream else model.adapters
    for path in (model.path, *(adapter.path for adapter in adapters)):
        if path.startswith("/") and not Path(path).is_dir():
            raise ConfigError(f"LONGHAUL_MODELS: model {model.name!r}: the path {path!r} is not a folder")


def _served(entry: _Entry, folder: Path) -> ServedModel:
    upstream = _upstream(entry)
    if upstream is None:
        _check_paths(entry)
    path = _resolve(entry.tokenizer or entry.path, folder)
    form = "chat" if entry.engine not in BY_VLLM and entry.format == AUTO else entry.format
    if entry.revision is not None and Path(path).is_absolute():
        raise ConfigError(f"model {entry.name!r}: revision is for models of a hub, and its path is a folder")
    return ServedModel(
        **{name: getattr(entry, name) for name in _AS_THEY_ARE},
        path=path,
        queue=entry.queue or f"model.{entry.name}",
        default_sampling=_default_sampling(entry),
        reasoning_parser=_parser(entry.reasoning_parser, entry, form),
        tool_parser=_parser(entry.tool_parser, entry, form),
        adapters=tuple(Adapter(adapter.name, _resolve(adapter.path, folder)) for adapter in entry.adapters),
        format=form,
        upstream=upstream,
    )


def _check_paths(entry: _Entry) -> None:
    if entry.engine == VLLM and not entry.path:
        raise ConfigError(f"model {entry.name!r} has no path")
    for adapter in entry.adapters:
        if not adapter.path:
            raise ConfigError(f"model {entry.name!r}: the adapter {adapter.name!r} has no path")


def _upstream(entry: _Entry) -> Upstream | None:
    """None: its engine is no server elsewhere."""
    values = {name: getattr(entry, name) for name in ("url", "api_key", "slots", "tokenizer")}
    if entry.engine != VLLM_SERVER:
        for name, value in values.items():
            if value is not None:
                raise ConfigError(f"model {entry.name!r}: {name} is for engine = {VLLM_SERVER!r}")
        return None
    for name in ("url", "tokenizer"):
        if values[name] is None:
            raise ConfigError(f"model {entry.name!r}: engine = {VLLM_SERVER!r} needs {name}")
    if entry.path:
        raise ConfigError(f"model {entry.name!r}: path is for an engine of its own; name the tokenizer alone")
    urls = [entry.url] if isinstance(entry.url, str) else entry.url or []
    _require_unique(urls, "url")
    return Upstream(tuple(url.rstrip("/") for url in urls), entry.api_key, entry.slots or DEFAULT_SLOTS)


def _default_sampling(entry: _Entry) -> Mapping[str, float] | None:
    if entry.default_sampling is None:
        return {} if entry.engine not in BY_VLLM else None
    return entry.default_sampling.model_dump(exclude_none=True)


def _parser(name: str, entry: _Entry, form: Format) -> str | None:
    """Other engines than vLLM are asked for nothing in a model's files, and harmony has its own parsers."""
    if name == NONE or form == "harmony":
        return None
    return None if name == AUTO and entry.engine not in BY_VLLM else name


def _require_unique(values: Iterable[str], kind: str) -> None:
    seen: set[str] = set()
    for value in values:
        if value in seen:
            raise ConfigError(f"two models have the {kind} {value!r}")
        seen.add(value)


def load_models(file: Path) -> ModelCatalog:
    """Reads a models file. Raises ConfigError, one line that names the file and the entry."""
    try:
        parsed = _File.model_validate(tomllib.loads(file.read_text(encoding="utf-8")))
        models = tuple(_served(entry, file.resolve().parent) for entry in parsed.models)
        _require_unique((served.name for served in ModelCatalog(models).served), "name")
        _require_unique((model.queue for model in models), "queue")
        tools = servers_of_file(parsed.tool_servers)
    except OSError as error:
        raise ConfigError(f"LONGHAUL_MODELS: cannot read {file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"LONGHAUL_MODELS: {file} is not valid TOML: {error}") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        location = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"LONGHAUL_MODELS: {file}: {location}: {first['msg']}") from None
    except ConfigError as error:
        raise ConfigError(f"LONGHAUL_MODELS: {file}: {error}") from None
    return ModelCatalog(models, tools)


def load_catalog(settings: Settings) -> ModelCatalog:
    """The models and MCP servers of the models file and the environment together. Raises ConfigError."""
    catalog = load_models(settings.models)
    return replace(catalog, tools=merge_servers(catalog.tools, servers_of_variable(settings.tool_servers)))
