"""Settings in layers: defaults < file < environment < command line, with the origin of every value.

Written here rather than taken from pydantic-settings for two promises that its sources do not keep: a variable or key
that means nothing is an error that names it, and every resolved value knows where it came from.
"""

import difflib
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeGuard, TypeVar, get_args

from pydantic import BaseModel, SecretStr, ValidationError

from deploy.errors import ConfigError

M = TypeVar("M", bound=BaseModel)
Key = tuple[str, ...]
PREFIX = "FORGESTREAM_"


@dataclass(frozen=True)
class Layer:
    """Values of one source. `origins` says for each key, as a path, where exactly it was set."""

    values: dict[Key, Any]
    origins: dict[Key, str]


@dataclass(frozen=True)
class Resolved(Generic[M]):
    """The settings, and the origin of every key that some layer set."""

    settings: M
    origins: dict[Key, str]

    def rows(self) -> list[dict[str, str]]:
        """Every setting as `key`, `value` (secrets masked) and `origin`."""
        return [
            {"key": ".".join(key), "value": _shown(value), "origin": self.origin(key)}
            for key, value in _leaves(self.settings)
        ]

    def origin(self, key: Key) -> str:
        """Where a value came from; `default` when no layer set it."""
        found = [origin for path, origin in self.origins.items() if path[: len(key)] == key or key[: len(path)] == path]
        return ", ".join(dict.fromkeys(found)) or "default"


def file_layer(path: Path) -> Layer:
    """The settings of a TOML file.

    Raises:
        ConfigError: not there, or no TOML.
    """
    try:
        with path.open("rb") as file:
            tree = tomllib.load(file)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such settings file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"{path}: unreadable settings: {error}") from error
    values = dict(_flat(tree))
    return Layer(values, dict.fromkeys(values, str(path)))


def environment_layer(environment: Mapping[str, str], ignored: frozenset[str] = frozenset()) -> Layer:
    """Every `FORGESTREAM_…` variable; two underscores separate the levels of a key."""
    names = {name: name for name in environment if name.startswith(PREFIX) and name not in ignored}
    keys = {tuple(name.removeprefix(PREFIX).lower().split("__")): name for name in names}
    return Layer({key: _parsed(environment[name]) for key, name in keys.items()}, dict(keys))


def option_layer(assignments: Sequence[str]) -> Layer:
    """The `key=value` texts of the `--set` options.

    Raises:
        ConfigError: one of them is no assignment.
    """
    values: dict[Key, Any] = {}
    for text in assignments:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"--set {text}: expected KEY=VALUE, for example --set proxy.port=8800")
        values[tuple(name.strip().split("."))] = _parsed(value)
    return Layer(values, {key: f"--set {'.'.join(key)}" for key in values})


def resolve(model: type[M], layers: Sequence[Layer]) -> Resolved[M]:
    """The settings that the layers make together; a later layer wins.

    Raises:
        ConfigError: unknown keys and values that do not fit, one line each.
    """
    tree: dict[str, Any] = {}
    origins: dict[Key, str] = {}
    for layer in layers:
        for key, value in layer.values.items():
            _put(tree, key, value, layer.origins[key])
            origins[key] = layer.origins[key]
    try:
        return Resolved(model.model_validate(tree), origins)
    except ValidationError as error:
        raise ConfigError("\n".join(_line(model, origins, problem) for problem in error.errors())) from None


def known_keys(model: type[BaseModel], above: Key = ()) -> Iterator[Key]:
    """Every key of a settings model, as a path."""
    for name, field in model.model_fields.items():
        nested = [kind for kind in (field.annotation, *get_args(field.annotation)) if _is_model(kind)]
        if nested:
            for kind in nested:
                yield from known_keys(kind, (*above, name))
        else:
            yield (*above, name)


def _line(model: type[BaseModel], origins: dict[Key, str], problem: Any) -> str:
    key = tuple(str(part) for part in problem["loc"])
    # a model validator may have moved the value: then the nearest key that was set is named
    where = [origin for path, origin in origins.items() if path[: len(key)] == key or key[: len(path)] == path]
    source = f" (from {', '.join(dict.fromkeys(where))})" if where else ""
    name = ".".join(key)
    if problem["type"] == "extra_forbidden":
        return f"unknown setting {name}{source}{_near(name, model)}: `forgestream config` lists all of them"
    given = "" if problem["type"] == "missing" else f", not {_brief(problem['input'])}"
    return f"setting {name}{source}: {problem['msg'][0].lower()}{problem['msg'][1:]}{given}"


def _near(name: str, model: type[BaseModel]) -> str:
    names = {".".join(key) for key in known_keys(model)}
    sections = {key.rpartition(".")[0] for key in names} - {""}
    near = difflib.get_close_matches(name, sorted(names | sections), n=3, cutoff=0.7)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _put(tree: dict[str, Any], key: Key, value: Any, origin: str) -> None:
    for part in key[:-1]:
        tree = tree.setdefault(part, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"setting {'.'.join(key)} (from {origin}): {part} is set to a plain value elsewhere")
    tree[key[-1]] = value


def _flat(tree: Mapping[str, Any], above: Key = ()) -> Iterator[tuple[Key, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, (*above, name))
        else:
            yield (*above, name), value


def _leaves(settings: BaseModel, above: Key = ()) -> Iterator[tuple[Key, Any]]:
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if isinstance(value, BaseModel):
            yield from _leaves(value, (*above, name))
        else:
            yield (*above, name), value


def _parsed(text: str) -> Any:
    """A JSON list or object as what it is; all else stays text, which pydantic converts to the field's type."""
    if text[:1] in ("[", "{"):
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            return text
    return text


def _shown(value: Any) -> str:
    if isinstance(value, SecretStr):
        return "********" if value.get_secret_value() else ""
    if isinstance(value, dict):
        return json.dumps({name: "********" if _is_secret(name) else str(part) for name, part in value.items()})
    return json.dumps(value, default=str) if isinstance(value, list | tuple) else str(value)


def _is_secret(name: str) -> bool:
    return any(word in name.lower() for word in ("password", "secret", "token", "ssl.key", "jaas"))


def _brief(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "…"


def _is_model(kind: Any) -> TypeGuard[type[BaseModel]]:
    return isinstance(kind, type) and issubclass(kind, BaseModel)
