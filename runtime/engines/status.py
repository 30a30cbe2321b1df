"""What an open engine says about itself: `lopa doctor` shows it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class GraphStatus:
    """How the steps of one instance are launched.

    `state` is "unused" (no step yet), "captured" (a CUDA graph of ours, replayed), "library" (the
    library captures and replays inside its own call) or "plain" (no graph; `reason` says why).
    """

    instance: str
    state: str
    replays: int = 0
    reason: str | None = None

    @property
    def text(self) -> str:
        """One line for people."""
        if self.state == "captured":
            return f"captured, {self.replays} replays"
        if self.state == "library":
            return "captured and replayed by the library"
        return self.state + (f": {self.reason}" if self.reason else "")


@dataclass(frozen=True)
class EngineStatus:
    """Library with its version, device, memory, and graphs by instance.

    `memory` are the bytes, by use, of what all decodes share; `decode_memory` are those of each
    decode that runs at the same time as others.
    """

    library: str
    device: str
    memory: dict[str, int]
    graphs: tuple[GraphStatus, ...]
    decode_memory: dict[str, int] = field(default_factory=dict)


class EngineWarning(UserWarning):
    """Something that costs speed but not correctness."""
