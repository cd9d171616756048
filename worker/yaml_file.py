"""Reads what people wrote in YAML: plain values only, so that whatever uses them later cannot stumble over them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pathlib import Path

MAX_YAML_BYTES: Final = 1 << 20
MAX_VALUES: Final = 100_000
"""In one file; what an alias stands for counts each time."""
MAX_DEPTH: Final = 32
_SHOWN: Final = 64


class YamlFileError(ValueError):
    """The file is not as it should be; the text says what is wrong, where in it, and what to write instead."""


def read_yaml(path: Path) -> Any:
    """Return what a file says: text, numbers, true and false, null, lists, and mappings with text for keys.

    Raises:
        OSError: it cannot be read.
        YamlFileError: it says something else, or too much.
    """
    with path.open("rb") as file:
        data = file.read(MAX_YAML_BYTES + 1)
    if len(data) > MAX_YAML_BYTES:
        raise YamlFileError(f"over {MAX_YAML_BYTES} bytes; is it the right file?")
    import yaml  # takes a while, and not every model has a description

    class Loader(yaml.SafeLoader):
        """Names the line of a value that is not what YAML takes it for, such as a date that there is not."""

        def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
            try:
                return super().construct_object(node, deep)
            except (yaml.YAMLError, RecursionError, YamlFileError):
                raise
            except Exception as error:  # whatever Python's own int, float, date and so on raise
                value, kind = _cut(str(node.value)), node.tag.rpartition(":")[2]
                at = f"line {node.start_mark.line + 1}"
                raise YamlFileError(f"{at}: {value!r} is read as !!{kind}, and is none; put it in quotes") from error

    try:
        said = yaml.load(data.decode(), Loader)  # noqa: S506 - it is a SafeLoader
    except YamlFileError:
        raise
    except RecursionError as error:
        raise YamlFileError(f"nested too deep; at most {MAX_DEPTH} levels") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise YamlFileError(f"not valid YAML: {error}") from error
    _Check().value(said, (), 0)
    return said


class _Check:
    """Looks at every value once for each time that it is reached."""

    def __init__(self) -> None:
        self._left = MAX_VALUES

    def value(self, said: object, where: tuple[str, ...], depth: int) -> None:
        """Do nothing where ``said``, at the place ``where``, is plain."""
        self._left -= 1
        if self._left < 0:
            raise YamlFileError(f"over {MAX_VALUES} values, those of aliases counted each time; use fewer")
        if depth > MAX_DEPTH:
            raise YamlFileError(f"{_shown(where[:2])}: nested over {MAX_DEPTH} levels deep; does an alias hold itself?")
        if isinstance(said, dict):
            for key, value in said.items():
                if not isinstance(key, str):
                    at = f"{_shown(where)}: " if where else ""
                    raise YamlFileError(f"{at}key {_cut(repr(key))}: a key is text; put it in quotes")
                self._text(key, where)
                self.value(value, (*where, key), depth + 1)
        elif isinstance(said, list):
            for place, value in enumerate(said):
                self.value(value, (*where, str(place)), depth + 1)
        elif isinstance(said, str):
            self._text(said, where)
        elif said is not None and not isinstance(said, bool | int | float):
            kind = type(said).__name__
            raise YamlFileError(f"{_shown(where)}: {_cut(str(said))!r} is read as a {kind}; put it in quotes")

    @staticmethod
    def _text(said: str, where: tuple[str, ...]) -> None:
        if said.isascii():
            return
        try:
            said.encode()
        except UnicodeEncodeError:
            raise YamlFileError(f"{_shown(where)}: {_cut(ascii(said))}: half of a surrogate pair is no text") from None


def _shown(where: tuple[str, ...]) -> str:
    return _cut(".".join(where)) or "the whole"


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
