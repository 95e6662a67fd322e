"""Reads options that a user wrote as JSON, and says which field is wrong and why."""

import re
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from rollouts.errors import RolloutsError

T = TypeVar("T")

_AT = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<where>[^`]*)`)?$", re.DOTALL)
_FIELD = re.compile(r"Object (?P<how>contains unknown|missing required) field `(?P<name>[^`]*)`")
_EXPECTED = re.compile(r"Expected `(?P<want>[^`]*)`, got `(?P<got>[^`]*)`")


@dataclass(frozen=True)
class Problem:
    """What is wrong with one field; `field` is a dotted path, empty for the whole value."""

    field: str
    message: str

    def below(self, parent: str) -> "Problem":
        """The same problem seen from the object that holds `parent`."""
        return Problem(f"{parent}.{self.field}" if self.field else parent, self.message)

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


class OptionsError(RolloutsError):
    """Options that do not fit what takes them."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


def read_json(text: str | bytes, kind: type[T]) -> T:
    """A value of type `kind` from JSON.

    Raises:
        OptionsError: not JSON, or a field is unknown, missing or of the wrong type.
    """
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as error:
        raise OptionsError(explain(str(error))) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise OptionsError(Problem("", f"not JSON: {error}")) from None


def explain(error: str) -> Problem:
    """msgspec's sentence as a field and a message."""
    match = _AT.match(error)
    what, where = (match["what"], match["where"] or "") if match else (error, "")
    if field := _FIELD.search(what):
        path = f"{where}.{field['name']}" if where else field["name"]
        return Problem(path, "unknown field" if field["how"] == "contains unknown" else "missing")
    if expected := _EXPECTED.search(what):
        return Problem(where, f"must be {expected['want']}, not {expected['got']}")
    return Problem(where, what)
