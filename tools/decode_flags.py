"""The decode settings as command-line flags, shared by every command that decodes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from .arguments import natural, number, path, positive

if TYPE_CHECKING:
    from ..runtime.options import DecodeOptions
    from ..runtime.session import Session


def add_decode_flags(parser: argparse.ArgumentParser) -> None:
    """Add one flag per field of DecodeOptions; None stands for its default."""
    group = parser.add_argument_group(
        "decoding", "A setting that the strategy does not use is refused, not ignored."
    )
    group.add_argument(
        "--settings",
        metavar="FILE",
        type=path,
        help="JSON object of settings, as lopa tune writes it; flags go over it",
    )
    group.add_argument(
        "--strategy",
        metavar="NAME",
        help="lopa (default), d2f, fast-dllm, block-diffusion or vanilla",
    )
    group.add_argument(
        "--base",
        metavar="NAME",
        help="of lopa: the strategy whose result is the anchor (default d2f)",
    )
    group.add_argument(
        "--lookahead",
        metavar="K",
        type=natural,
        help="of lopa: lookahead branches (default: what the bundle has, at most 4)",
    )
    group.add_argument(
        "--lookahead-shape",
        metavar="NAME",
        help="of lopa: what a lookahead adds to the anchor: single (default), one position each as "
        "published, or nested, more and more positions; the one with the most confirmed tokens "
        "wins",
    )
    group.add_argument(
        "--confirm",
        metavar="F",
        type=number,
        help="of --lookahead-shape nested: least probability in the view of a smaller branch that "
        "confirms a token (default 0.5)",
    )
    group.add_argument(
        "--block-size",
        metavar="N",
        type=positive,
        help="default: what the model was trained with; vanilla: one block of all new tokens",
    )
    group.add_argument(
        "--small-block-size",
        metavar="N",
        type=positive,
        help="block-diffusion: part of a block that is filled at a time (default: the block)",
    )
    group.add_argument(
        "--max-new-tokens",
        metavar="N",
        type=positive,
        help="default: what fits, at most 256; vanilla and fast-dllm mask all of them from the "
        "start",
    )
    group.add_argument(
        "--add-threshold",
        metavar="F",
        type=number,
        help="of d2f: decoded share of the last block at which the next is added (default 0.1)",
    )
    group.add_argument(
        "--complete-threshold",
        metavar="F",
        type=number,
        help="of d2f: decoded share at which the block after it may be forced (default 0.95)",
    )
    group.add_argument(
        "--fill",
        metavar="NAME",
        help="what a step fills: threshold (default), factor (fast-dllm), quota (vanilla's only "
        "choice), sequential (block-diffusion)",
    )
    group.add_argument(
        "--confidence",
        metavar="F",
        type=number,
        help="of --fill threshold: every position above it is filled at once (default 0.9)",
    )
    group.add_argument(
        "--threshold",
        dest="confidence",
        metavar="F",
        type=number,
        help="the same setting as --confidence (default 0.9)",
    )
    group.add_argument(
        "--factor",
        metavar="F",
        type=number,
        help="of fast-dllm: bound of --fill factor, which it implies",
    )
    group.add_argument(
        "--cache",
        metavar="NAME",
        help="fast-dllm, block-diffusion: none, prefix (default) or dual",
    )
    group.add_argument(
        "--score",
        metavar="NAME",
        help="of lopa: what branches are compared by: mean_confidence (default), bottom_fraction, "
        "mixed, reward_entropy, sliding_minimum, least_segment",
    )
    group.add_argument(
        "--score-alpha",
        metavar="F",
        type=number,
        help="of the scores mixed and reward_entropy: weight of what a branch has filled",
    )
    group.add_argument(
        "--score-fraction",
        metavar="F",
        type=number,
        help="of bottom_fraction, mixed: share of the least sure masks that counts (default 0.5)",
    )
    group.add_argument(
        "--score-window",
        metavar="N",
        type=positive,
        help="of sliding_minimum: consecutive masks averaged (default 8)",
    )
    group.add_argument(
        "--anchor-wins",
        action="store_const",
        const=True,
        help="of lopa, an ablation: score the branches but always commit the anchor",
    )
    group.add_argument(
        "--measure",
        metavar="NAME",
        help="what ranks positions: probability (default), margin or entropy",
    )
    group.add_argument(
        "--window-attention",
        metavar="NAME",
        help="of d2f, also as base: full or block-causal (default: block-causal for d2f, full "
        "for lopa)",
    )
    group.add_argument(
        "--steps",
        metavar="N",
        type=positive,
        help="vanilla, fast-dllm: steps in all that quotas spread over (default: one per token)",
    )
    group.add_argument(
        "--block-steps",
        metavar="N",
        type=positive,
        help="block-diffusion: steps of each block (default: one per position)",
    )
    group.add_argument(
        "--schedule",
        metavar="NAME",
        help="vanilla, fast-dllm: counts of --fill quota: dream (default with shifted logits) or "
        "llada",
    )
    group.add_argument(
        "--stop",
        metavar="NAME",
        help="what a stop token ends: the decode at that token (token), after its block (block), "
        "nothing (none); default: block for d2f, token for block-diffusion",
    )
    group.add_argument(
        "--precision-policy",
        metavar="NAME",
        help="of bundles built with --fast-model: full (default), fast (the quantised graph) or "
        "auto (fast where rounding decides nothing)",
    )
    group.add_argument(
        "--precision-margin",
        metavar="F",
        type=number,
        help="of auto: a fast step runs again in full if branch scores, or a probability and its "
        "threshold, are nearer than this (default 0.05)",
    )
    group.add_argument(
        "--revision",
        metavar="NAME",
        help="of fast-dllm and Fast-dLLM v2: v1 (default) or legacy, the first published loop",
    )
    group.add_argument(
        "--temperature", metavar="F", type=number, help="0 (default) takes the likeliest token"
    )
    group.add_argument("--top-k", metavar="N", type=positive, help="sample from the N likeliest")
    group.add_argument("--top-p", metavar="F", type=number, help="sample from this share")
    group.add_argument("--seed", metavar="N", type=natural, help="of the sampling (default 0)")
    group.add_argument(
        "--strict",
        action="store_const",
        const=True,
        help="fail, rather than stop early, when a block fits no instance of the bundle, and, "
        "rather than run slower, when a CUDA graph cannot be captured",
    )


def setting_values(text: str) -> tuple[str, list[Any]]:
    """A decode setting and values to compare, `FIELD=a,b,...`, each read as its own flag is."""
    name, _, listed = text.partition("=")
    parser = argparse.ArgumentParser(add_help=False)
    add_decode_flags(parser)
    flags = {
        option.removeprefix("--").replace("-", "_"): action
        for action in parser._actions
        for option in action.option_strings
        if action.nargs != 0 and action.dest != "settings"
    }
    action = flags.get(name.strip().replace("-", "_"))
    if action is None or not listed.strip():
        known = ", ".join(sorted({action.dest for action in flags.values()}))
        raise argparse.ArgumentTypeError(
            f"expected FIELD=a,b,... with a field of {known}; got {text!r}"
        )
    read = cast("Callable[[str], Any]", action.type or str)
    values: list[Any] = []
    for part in listed.split(","):
        try:
            value = read(part.strip())
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentTypeError(f"{text}: {error}") from None
        if value in values:
            raise argparse.ArgumentTypeError(f"{text}: {value} is given twice")
        values.append(value)
    return action.dest, values


def add_engine_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `open_bundle`."""
    group = parser.add_argument_group("engine")
    group.add_argument(
        "--provider",
        choices=("cpu", "cuda"),
        default="cpu",
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
        type=path,
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
    from dataclasses import replace

    from ..runtime.options import SETTINGS, DecodeOptions

    given = {
        name: getattr(args, name) for name in SETTINGS if getattr(args, name, None) is not None
    }
    options = DecodeOptions() if args.settings is None else _read_settings(args.settings)
    return replace(options, **given)


def _read_settings(path: Path) -> DecodeOptions:
    from ..runtime.contract import LopaError
    from ..runtime.options import DecodeOptions, with_settings
    from ..runtime.strict_json import read_json

    found = read_json(path)
    if not isinstance(found, dict):
        raise LopaError(f"{path} holds {type(found).__name__}, expected an object of settings")
    try:
        return with_settings(DecodeOptions(), found)
    except LopaError as error:
        raise LopaError(f"{path}: {error}") from None
