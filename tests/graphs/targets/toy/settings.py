from __future__ import annotations

from dataclasses import dataclass, field

from lopa.graphs.targets.flags import flag
from lopa.graphs.targets.protocol import Offer
from lopa.graphs.targets.windows import STATIC_SHAPES


@dataclass(frozen=True)
class ToySettings:
    colour: str = field(
        default="red",
        metadata=flag("--toy-colour", "--toyColour", choices=("red", "deep-blue"), help="paint"),
    )


OFFER = Offer("Toy", ("fp32",), STATIC_SHAPES, ToySettings, "Flags of the toy.")
