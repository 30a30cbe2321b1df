from __future__ import annotations

from lopa.graphs.targets.protocol import Findings
from lopa.runtime.engines.devices import Devices


def probe(target: str, provider: str, devices: Devices) -> Findings:
    return Findings("1.0", None, "out of batteries")
