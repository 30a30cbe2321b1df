"""Text in and out: tokenizer, chat template, stop rule."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
import jinja2.sandbox
from tokenizers import Tokenizer

from .contract import LopaError


class PromptError(LopaError):
    """A prompt that cannot be encoded or does not fit."""


class TextCodec:
    """Tokenizer and chat template of a bundle.

    Raises PromptError when a chat template is asked for and the bundle has none.
    """

    def __init__(self, folder: Path, stop_token_ids: Sequence[int]) -> None:
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise PromptError(f"{folder} has no tokenizer.json; give prompt_ids or rebuild it")
        try:
            self.tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises no narrower one
            raise PromptError(f"{path} is damaged ({error}); build the bundle again") from None
        self.stop_token_ids = frozenset(stop_token_ids)
        self._config = _read_config(folder / "tokenizer_config.json")
        self.template = _read_template(folder, self._config)

    def encode(self, text: str, raw: bool) -> list[int]:
        """Token ids of a user message under the chat template, or of `text` as it is."""
        if not isinstance(text, str):
            raise PromptError(f"the prompt is {text!r:.40}, expected text")
        if not text:
            raise PromptError("the prompt is empty; give at least one character")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise PromptError("the prompt holds bytes that are not valid Unicode text") from None
        rendered = text if raw else self.render([{"role": "user", "content": text}])
        ids: list[int] = self.tokenizer.encode(rendered, add_special_tokens=False).ids
        return ids

    def render(self, messages: Sequence[dict[str, str]], *, generation_prompt: bool = True) -> str:
        """Apply the chat template to messages, ending with the generation prompt if asked."""
        if not self.template:
            raise PromptError(
                "the tokenizer has no chat template; use --raw (raw=True) to decode the "
                "prompt as it is"
            )
        tokens = {
            key: value["content"] if isinstance(value, dict) else value
            for key, value in self._config.items()
            if key.endswith("_token") and value is not None
        }
        try:
            template = _environment().from_string(self.template)
            return template.render(
                messages=messages, add_generation_prompt=generation_prompt, **tokens
            )
        except jinja2.TemplateError as error:
            raise PromptError(f"the chat template failed: {error}; use --raw") from None

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of `token_ids` up to the first stop token (end of text, pad, end of turn)."""
        text: str = self.tokenizer.decode(
            list(token_ids[: stop_index(token_ids, self.stop_token_ids)]), skip_special_tokens=True
        )
        return text

    def piece(self, token_id: int) -> str:
        """Text of one token, for displays."""
        text: str = self.tokenizer.decode([token_id], skip_special_tokens=False)
        return text


def stop_index(token_ids: Sequence[int], stop_token_ids: frozenset[int]) -> int:
    """Index of the first stop token, or the length when there is none."""
    return next(
        (index for index, token in enumerate(token_ids) if token in stop_token_ids), len(token_ids)
    )


def _read_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise PromptError(f"{path} is damaged ({error}); build the bundle again") from None
    return config if isinstance(config, dict) else {}


def _read_template(folder: Path, config: dict[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    try:
        source = path.read_text(encoding="utf-8") if path.is_file() else config.get("chat_template")
    except UnicodeDecodeError as error:
        raise PromptError(f"{path} is damaged ({error}); build the bundle again") from None
    if isinstance(source, list):  # several named templates
        named = {item.get("name"): item.get("template") for item in source}
        source = named.get("default")
    return source


def _environment() -> jinja2.Environment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = _raise
    return environment


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)
