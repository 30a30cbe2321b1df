"""Flags of `lopa build` that depend on the target; those of builders are what targets declare."""

from __future__ import annotations

import argparse
import re
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..graphs.targets import offer_of, offers
from ..graphs.targets.flags import Flag, flags_of
from ..runtime.contract import LopaError
from ..runtime.manifest import MODEL_FILE, read_model
from .arguments import positives
from .paths import cache_file

# Type of a setting -> what turns the text of its flag into the value.
_PARSERS: dict[Any, Callable[[str], Any]] = {
    int: int,
    int | None: int,
    Path: cache_file,  # whatever a builder keeps or writes
    Path | None: cache_file,
    tuple[int, ...]: positives,
}


def add_precision_flags(parser: argparse.ArgumentParser, precisions: tuple[str, ...]) -> None:
    """Add what chooses the precision of the graph."""
    precision = parser.add_mutually_exclusive_group()
    precision.add_argument(
        "--precision", choices=precisions, help="default: fp32, or what the model folder has"
    )
    for name in ("fp16", "bf16"):
        precision.add_argument(
            f"--{name}",
            dest="precision",
            action="store_const",
            const=name,
            help=f"--precision {name}: the graph is exported in it (TensorRT takes types from the "
            "graph; as a builder flag it is gone with TensorRT 11)",
        )
    parser.add_argument(
        "--int8",
        action="store_true",
        help="insist on a model folder quantised by lopa calibrate: TensorRT 11 has no calibrator "
        "and reads INT8 from the graph",
    )


def add_target_flags(parser: argparse.ArgumentParser) -> None:
    """Add the builder flags of every target; none has a value unless it is given."""
    for offer in dict.fromkeys(offers().values()):
        if offer.settings is None:
            continue
        group = parser.add_argument_group(f"{offer.title} targets", offer.about)
        types = typing.get_type_hints(offer.settings)
        for field, flag in flags_of(offer.settings).items():
            group.add_argument(*flag.spellings, **_argument(flag, types[field]))


def target_settings(args: argparse.Namespace) -> Any:
    """Return what the flags say, None for a target without settings.

    Raises LopaError for flags of other targets.
    """
    own = offer_of(args.target).settings
    fields = {flag: field for field, flag in flags_of(own).items()}
    given = {
        flag: value
        for offer in dict.fromkeys(offers().values())
        for flag in flags_of(offer.settings).values()
        if (value := getattr(args, _attribute(flag))) is not None
    }
    foreign = [flag for flag in given if flag not in fields]
    if foreign:
        able = [
            name
            for name, offer in offers().items()
            if set(foreign) & set(flags_of(offer.settings).values())
        ]
        raise LopaError(
            f"--target {args.target} has no use for {', '.join(flag.name for flag in foreign)}; "
            f"leave it out or choose one of {', '.join(able)}"
        )
    return None if own is None else own(**{fields[flag]: value for flag, value in given.items()})


def check_int8(folder: Path) -> None:
    """Raise LopaError unless `folder` is a model folder made by `lopa calibrate`."""
    if not (folder / MODEL_FILE).is_file():
        found = "is not a model folder"
    elif read_model(folder).quantization is None:
        found = "is not quantised"
    else:
        return
    raise LopaError(
        f"--int8 needs a quantised model folder, {folder} {found}; make one with: "
        "lopa calibrate MODEL --prompts FILE -o MODEL_INT8"
    )


def _argument(flag: Flag, kind: Any) -> dict[str, Any]:
    """How argparse takes a flag whose setting is of a type."""
    said: dict[str, Any] = {"default": None, "help": flag.help}
    if kind is bool:
        return {**said, "action": "store_true"}
    said["metavar"] = flag.metavar
    if flag.parse is not None:
        return {**said, "type": _parsed(flag.parse)}
    if flag.choices is None or kind not in (str, str | None):
        return {**said, "type": _PARSERS[kind], "choices": flag.choices}
    metavar = flag.metavar or "|".join(flag.choices)
    return {**said, "type": _spelled(flag.choices), "metavar": metavar}


def _attribute(flag: Flag) -> str:
    """Where argparse puts the value."""
    return flag.spellings[0].removeprefix("--").replace("-", "_")


def _parsed(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Type of a flag whose text a target reads itself."""

    def convert(text: str) -> Any:
        try:
            return parse(text)
        except LopaError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def _spelled(names: Sequence[str]) -> Callable[[str], str]:
    """Type of a flag that takes one of `names`; camelCase and snake_case are the same."""

    def choose(text: str) -> str:
        plain = {name.replace("-", ""): name for name in names}
        found = plain.get(re.sub("[-_]", "", text).lower())
        if found is None:
            raise argparse.ArgumentTypeError(f"expected one of {', '.join(names)}, got {text}")
        return found

    return choose
