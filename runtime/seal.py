"""The seal of a manifest: a digest of each of its sections, so that it notices a change.

A section is a top-level key. `digests` maps each to the sha256 (hex) of its value as canonical
JSON: keys sorted, no white space, other than ASCII characters escaped (docs/contract.md).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

DIGESTS = "digests"


def digest(value: Any) -> str:
    """The sha256 (hex) of a JSON value in its canonical form."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def sealed(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections with their digests, in place of those they had."""
    own = {name: value for name, value in sections.items() if name != DIGESTS}
    return {**own, DIGESTS: {name: digest(value) for name, value in own.items()}}


def seal_faults(data: Mapping[str, Any]) -> list[str]:
    """List the sections of a sealed manifest that are not as they were sealed."""
    digests = data.get(DIGESTS)
    if not isinstance(digests, dict):
        return [f"{DIGESTS} is missing" if DIGESTS not in data else f"{DIGESTS} is no object"]
    found = sealed(data)[DIGESTS]
    faults = [f"{name!r:.40} was added" for name in sorted(found.keys() - digests.keys())]
    faults += [f"{name!r:.40} was removed" for name in sorted(digests.keys() - found.keys())]
    faults += [
        f"{name} was changed"
        for name in sorted(found.keys() & digests.keys())
        if found[name] != digests[name]
    ]
    return faults
