"""Which engine shapes a decode runs, so that a bundle that lacks one is refused beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .contract import Instance, smallest_fit
from .manifest import ModelInfo
from .strategies.block_diffusion import BlockDiffusion
from .strategies.choice import make_strategy

if TYPE_CHECKING:
    from .options import DecodeOptions


def steps_needed(options: DecodeOptions, model: ModelInfo, prompt: int) -> list[Instance]:
    """Steps of resolved options on `prompt` tokens that an instance must hold, the largest ones.

    A cache refresh and the encoding of the prompt run the anchor alone. Of d2f, which adapts to
    what fits, they are the smallest: the prompt with its first block, then one block.
    """
    assert options.lookahead is not None
    assert options.block_size is not None
    assert options.max_new_tokens is not None
    branches, block = options.lookahead + 1, options.block_size
    total = prompt + options.max_new_tokens
    if options.rules == "d2f":
        total = prompt + block
        shapes = [(1, total), (branches, block)]
    elif options.rules == "block-diffusion":
        rules = make_strategy(options, model)
        assert isinstance(rules, BlockDiffusion)
        total = rules.slots(prompt)
        width = total if options.cache == "none" else block
        whole = prompt // block * block
        prefill = [(1, whole)] if whole and options.cache != "none" else []
        shapes = [*prefill, (branches, width)]
    elif options.cache == "none":
        shapes = [(branches, total)]
    else:
        later = min(block, options.max_new_tokens) if options.cache == "dual" else total - prompt
        shapes = [(1, total), (branches, later)]
    return [Instance(count, width, total, min(width, block) * count) for count, width in shapes]


def misfit(instances: Sequence[Instance], steps: Sequence[Instance]) -> str | None:
    """Say which of `steps` no instance holds and how to build a bundle that does."""
    for step in steps:
        if smallest_fit(instances, step) is None:
            flags = (
                f"--prefill {step.window}"
                if step.branches == 1
                else f"--lookahead {step.branches - 1} --window {step.window}"
            )
            known = ", ".join(instance.name for instance in instances)
            return (
                f"needs a step of {step.branches} branch{'es' * (step.branches > 1)} by "
                f"{step.window} window tokens over {step.context} cache slots, the bundle has "
                f"{known}; "
                f"build with {flags} --context {step.context}"
            )
    return None
