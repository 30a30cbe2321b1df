"""Memory of a bundle for people: what `lopa inspect` shows and `--low-memory` saves."""

from __future__ import annotations

from ...runtime.manifest import BundleManifest
from ...runtime.memory import bundle_memory
from .report import columns, size_text


def memory_lines(manifest: BundleManifest) -> list[str]:
    """Total, its parts, and one line per instance under a heading."""
    memory = bundle_memory(manifest)
    head = ("instance", "window of a branch", "all windows", "activations", "host per step")
    rows = [
        (
            item.instance.name,
            size_text(item.branch_window),
            size_text(item.windows),
            size_text(item.activations),
            size_text(item.host),
        )
        for item in memory.instances
    ]
    return [
        f"about {size_text(memory.total)}: weights {size_text(memory.weights)}, cache "
        f"{size_text(memory.cache)}, then the largest of each column (activations are an estimate)",
        *columns([head, *rows]),
    ]


def low_memory_line(whole: BundleManifest, small: BundleManifest) -> str:
    """What `--low-memory` saves and what it costs."""
    if whole.instances == small.instances:
        return "low memory: the bundle has one window size, there is nothing smaller to open"
    before, after = bundle_memory(whole).total, bundle_memory(small).total
    widest = max(instance.window for instance in whole.instances)
    window = small.instances[0].window
    return (
        f"low memory: {len(small.instances)} of {len(whole.instances)} instances, about "
        f"{size_text(after)} instead of {size_text(before)}; prompt and open blocks share "
        f"{window} window tokens instead of {widest}, so long prompts are refused and fewer "
        "blocks fill at once"
    )
