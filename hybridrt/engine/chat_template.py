"""Chat templates: Jinja programs that come with a model, run in a sandbox.

A template is a stranger's code. It sees plain data only (text, numbers, lists
and dicts, copied), in Jinja's immutable sandbox, with the same helpers that
transformers offers, so that it gives the same text.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybridrt.engine.checkpoint import read_text

if TYPE_CHECKING:
    from jinja2 import Template
    from jinja2.sandbox import ImmutableSandboxedEnvironment

_FILE = "chat_template.jinja"
_CONFIG = "tokenizer_config.json"


class ChatTemplate:
    """A model's templates by name: `default`, and `tool_use` where tools have their own.

    `origin` is the file they came from, for errors.
    """

    def __init__(self, templates: Mapping[str, str], origin: str) -> None:
        self._sources = dict(templates)
        self._compiled: dict[str, Template] = {}
        self._origin = origin

    @classmethod
    def from_directory(cls, path: Path, config: Mapping[str, Any]) -> "ChatTemplate | None":
        """The template in `chat_template.jinja`, else in `tokenizer_config.json` (`config`).

        Raises:
            ValueError: `chat_template` is neither a text nor a list of named texts.
        """
        file = path / _FILE
        if file.is_file():
            return cls({"default": read_text(file)}, str(file))
        found = config.get("chat_template")
        if found is None:
            return None
        return cls(_named_templates(found, path / _CONFIG), str(path / _CONFIG))

    def render(self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> str:
        """The text of a chat.

        Raises:
            ValueError: there are no messages, something given is not plain data, or the
                template is wrong or refuses them.
        """
        chat = [_plain_message(n, message) for n, message in enumerate(messages)]
        if not chat:
            raise ValueError("messages=[]: should hold at least one message")
        plain = {name: _plain(name, value) for name, value in variables.items()}
        name = self._choose(bool(plain.get("tools")))
        try:
            if name not in self._compiled:
                self._compiled[name] = self._environment.from_string(self._sources[name])
            return self._compiled[name].render(
                {"tools": None, "documents": None, **plain, "messages": chat}
            )
        except Exception as error:  # a template can fail in any way that Python can
            raise ValueError(
                f"chat template of {self._origin}: {type(error).__name__}: {error}"
            ) from error

    def _choose(self, has_tools: bool) -> str:
        name = "tool_use" if has_tools and "tool_use" in self._sources else "default"
        if name not in self._sources:
            raise ValueError(
                f"{self._origin}: chat_template has {sorted(self._sources)}; "
                "should have one named 'default'"
            )
        return name

    @cached_property
    def _environment(self) -> "ImmutableSandboxedEnvironment":
        from hybridrt.engine.template_language import environment

        return environment()


def _named_templates(found: Any, file: Path) -> dict[str, str]:
    if isinstance(found, str):
        return {"default": found}
    try:
        named = {item["name"]: item["template"] for item in found}
    except (KeyError, TypeError):
        named = {}
    if not named or not all(isinstance(text, str) for text in named.values()):
        raise ValueError(
            f'{file}: chat_template should be a text, or a list of {{"name": ..., "template": ...}}'
        )
    return named


def _plain_message(number: int, message: Any) -> dict[str, Any]:
    where = f"messages[{number}]"
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise ValueError(f"{where}={message!r}: should be a dict with a 'role' and its 'content'")
    # Templates test for a missing key, and would print a None.
    return {key: value for key, value in _plain(where, message).items() if value is not None}


def _plain(where: str, value: Any) -> Any:
    """A copy of plain data, so that a template never gets hold of an object of ours."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(f"{where}[{key!r}]", item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(f"{where}[{n}]", item) for n, item in enumerate(value)]
    raise ValueError(
        f"{where} is a {type(value).__name__}; a chat template takes text, numbers, lists and dicts"
    )
