"""The decode settings as command-line flags, shared by every command that decodes."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from .arguments import natural, number, positive

if TYPE_CHECKING:
    from ..runtime.options import DecodeOptions


def add_decode_flags(parser: argparse.ArgumentParser) -> None:
    """Add one flag per field of DecodeOptions; None stands for its default."""
    group = parser.add_argument_group("decoding")
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
        help="lookahead branches (default: what the bundle has, at most 4)",
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
        "--max-new-tokens", metavar="N", type=positive, help="default: what fits, at most 256"
    )
    group.add_argument(
        "--add-threshold",
        metavar="F",
        type=number,
        help="decoded share of the last block at which the next is added (default 0.1)",
    )
    group.add_argument(
        "--complete-threshold",
        metavar="F",
        type=number,
        help="decoded share at which the block after it may be forced (default 0.95)",
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
        help="every position above it is filled at once (default 0.9)",
    )
    group.add_argument(
        "--threshold",
        dest="confidence",
        metavar="F",
        type=number,
        help="the same setting as --confidence (default 0.9)",
    )
    group.add_argument(
        "--factor", metavar="F", type=number, help="bound of --fill factor, which it implies"
    )
    group.add_argument(
        "--cache",
        metavar="NAME",
        help="fast-dllm, block-diffusion: none, prefix (default) or dual",
    )
    group.add_argument(
        "--score",
        metavar="NAME",
        help="what branches are compared by: mean_confidence (default), bottom_fraction, mixed, "
        "reward_entropy, sliding_minimum, least_segment",
    )
    group.add_argument(
        "--score-alpha", metavar="F", type=number, help="weight of what a branch has filled"
    )
    group.add_argument(
        "--score-fraction",
        metavar="F",
        type=number,
        help="share of the least sure masks that counts (default 0.5)",
    )
    group.add_argument(
        "--score-window",
        metavar="N",
        type=positive,
        help="consecutive masks averaged by sliding_minimum (default 8)",
    )
    group.add_argument(
        "--anchor-wins",
        action="store_const",
        const=True,
        help="ablation: score the branches but always commit the anchor",
    )
    group.add_argument(
        "--measure",
        metavar="NAME",
        help="what ranks positions: probability (default), margin or entropy",
    )
    group.add_argument(
        "--window-attention",
        metavar="NAME",
        help="full or block-causal (default: block-causal for d2f, else full)",
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
        help="quotas per step: dream (default with shifted logits) or llada",
    )
    group.add_argument(
        "--stop",
        metavar="NAME",
        help="what a stop token ends: the decode at that token (token), after its block (block), "
        "nothing (none); default: block for d2f, token for block-diffusion",
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
        help="fail, rather than stop early, when a block fits no instance of the bundle",
    )


def add_engine_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `open_bundle`."""
    group = parser.add_argument_group("engine")
    group.add_argument("--provider", choices=("cpu", "cuda"), default="cpu", help="default: cpu")
    group.add_argument(
        "--threads", metavar="N", type=natural, default=0, help="0 (default): the library chooses"
    )
    group.add_argument(
        "--no-verify", action="store_true", help="do not compare the files with the manifest first"
    )


def decode_options(args: argparse.Namespace) -> DecodeOptions:
    """Return the settings given on the command line over the defaults."""
    from dataclasses import fields

    from ..runtime.options import DecodeOptions

    names = (field.name for field in fields(DecodeOptions))
    given = {name: getattr(args, name) for name in names if getattr(args, name, None) is not None}
    return DecodeOptions(**given)
