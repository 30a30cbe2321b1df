"""The decode settings as command-line flags, made from their declarations."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..runtime.targets import providers
from .arguments import natural, number, positive
from .paths import cache_file, path

if TYPE_CHECKING:
    from ..runtime.options import DecodeOptions
    from ..runtime.session import Session
    from ..runtime.setting import Setting


def add_decode_flags(parser: argparse.ArgumentParser) -> None:
    """Add one flag per declared setting; None stands for its default."""
    from .settings_text import flag_help

    group = parser.add_argument_group(
        "decoding", "A setting that the strategy does not use is refused, not ignored."
    )
    group.add_argument(
        "--settings",
        metavar="FILE",
        type=path,
        help="JSON object of settings, as lopa tune writes it; flags go over it",
    )
    for item in _settings():
        value: dict[str, Any] = {"action": "store_const", "const": True}
        if item.kind is not bool:
            value = {"metavar": _METAVARS[item.kind], "type": _reader(item)}
        for flag in _flags(item):
            group.add_argument(flag, dest=item.name, help=flag_help(item.name, flag), **value)


def setting_values(text: str) -> tuple[str, list[Any]]:
    """A decode setting and values to compare, `FIELD=a,b,...`, each read as its own flag is."""
    name, _, listed = text.partition("=")
    axes = {
        flag.removeprefix("--"): item
        for item in _settings()
        for flag in _flags(item)
        if item.kind is not bool
    }
    item = axes.get(name.strip().replace("_", "-"))
    if item is None or not listed.strip():
        known = ", ".join(sorted({item.name for item in axes.values()}))
        raise argparse.ArgumentTypeError(
            f"expected FIELD=a,b,... with a field of {known}; got {text!r}"
        )
    values: list[Any] = []
    for part in listed.split(","):
        try:
            value = _reader(item)(part.strip())
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentTypeError(f"{text}: {error}") from None
        if value in values:
            raise argparse.ArgumentTypeError(f"{text}: {value} is given twice")
        values.append(value)
    return item.name, values


def add_engine_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `open_bundle`."""
    group = parser.add_argument_group("engine")
    group.add_argument(
        "--provider",
        choices=providers(),
        default=providers()[0],
        help="of onnxruntime bundles (default: cpu); TensorRT bundles always run on the GPU",
    )
    group.add_argument(
        "--threads", metavar="N", type=natural, default=0, help="0 (default): the library chooses"
    )
    group.add_argument(
        "--no-verify", action="store_true", help="do not compare the files with the manifest first"
    )
    group.add_argument(
        "--low-memory",
        action="store_true",
        help="open the instances of the smallest window alone and say what it costs",
    )
    group.add_argument(
        "--runtime-cache",
        "--runtimeCacheFile",
        metavar="FILE",
        type=cache_file,
        help="where TensorRT for RTX keeps the kernels it compiles for this GPU (default: beside "
        "the bundle)",
    )


def open_session(args: argparse.Namespace) -> Session:
    """Open the bundle `args.bundle` as the engine flags say."""
    from ..runtime.session import open_bundle

    session = open_bundle(
        args.bundle,
        provider=args.provider,
        threads=args.threads,
        verify=not args.no_verify,
        strict=bool(args.strict),
        low_memory=args.low_memory,
        runtime_cache=args.runtime_cache,
    )
    if args.low_memory and not args.quiet:
        from ..runtime.manifest import read_bundle
        from .display.memory import low_memory_line

        print(low_memory_line(read_bundle(args.bundle), session.manifest), file=sys.stderr)
    return session


def decode_options(args: argparse.Namespace) -> DecodeOptions:
    """Return the settings given on the command line, over those of a file, over the defaults."""
    from ..runtime.options import DecodeOptions

    options = DecodeOptions() if args.settings is None else _read_settings(args.settings)
    given = {item.name: getattr(args, item.name, None) for item in _settings()}
    return options.replace(**{name: value for name, value in given.items() if value is not None})


def _read_settings(path: Path) -> DecodeOptions:
    from ..runtime.contract import LopaError
    from ..runtime.options import DecodeOptions, check_types
    from ..runtime.strict_json import read_json

    found = read_json(path)
    if not isinstance(found, dict):
        raise LopaError(f"{path} holds {type(found).__name__}, expected an object of settings")
    try:
        options = DecodeOptions(**found)
        check_types(options.given)
    except LopaError as error:
        raise LopaError(f"{path}: {error}") from None
    return options


_METAVARS = {int: "N", float: "F", str: "NAME"}


def _settings() -> list[Setting]:
    from ..runtime.strategies.registry import declared

    return [entries[0].setting for entries in declared().values()]


def _flags(item: Setting) -> list[str]:
    names = [item.name, *([item.alias] if item.alias else [])]
    return [f"--{name.replace('_', '-')}" for name in names]


def _reader(item: Setting) -> Callable[[str], Any]:
    if item.kind is int:
        return positive if item.least else natural
    return number if item.kind is float else str
