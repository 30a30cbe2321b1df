"""Streamed statistics of activation tensors: one state in memory at a time, some tensors at a time.

Saved as JSON after every few states, so that a killed run goes on where it stopped and ends with
the same file.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from ..runtime.contract import LopaError
from ..runtime.staging import write_whole
from .progress import Progress
from .session import open_session
from .sites import Site, StepGraph
from .states import Feeds, StateFolder, asked_rows, live_rows
from .thresholds import Histogram

VERSION = 1
FETCHED_BYTES = 128 << 20  # of activations that leave the engine in one run
SAMPLE_ROWS = 512  # rows of each tensor kept for measuring errors
SAMPLE_BYTES = 8 << 20
SAVE_SECONDS = 10.0
ROW_SUFFIX = ".f32"
START_AGAIN = "add --force to start again or choose another --work folder"

Floats = NDArray[np.float32]


@dataclass
class TensorRange:
    """What was seen of one tensor: largest magnitude per channel [K] and all magnitudes."""

    channels: Floats
    histogram: Histogram

    @classmethod
    def empty(cls, channels: int) -> TensorRange:
        """A tensor of K channels that was not seen yet."""
        return cls(np.zeros(channels, np.float32), Histogram.empty())

    def add(self, rows: Floats) -> None:
        """Take in rows [n, K]."""
        magnitudes = np.abs(rows)
        np.maximum(self.channels, magnitudes.max(0, initial=0.0), out=self.channels)
        self.histogram.add(magnitudes)

    @property
    def largest(self) -> float:
        """The largest magnitude."""
        return float(self.channels.max(initial=0.0))

    def data(self) -> dict[str, Any]:
        """JSON data; float32 survives the round trip."""
        return {
            "largest": self.largest,
            "bin_width": self.histogram.width,
            "counts": np.trim_zeros(self.histogram.counts, "b").tolist(),
            "channels": self.channels.tolist(),
        }

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> TensorRange:
        """The inverse of `data`."""
        found = cls.empty(len(data["channels"]))
        found.channels[:] = data["channels"]
        found.histogram.width = float(data["bin_width"])
        found.histogram.counts[: len(data["counts"])] = data["counts"]
        return found


class RowSamples:
    """Rows of every tensor spread over all states, in one file per tensor."""

    def __init__(self, folder: Path, channels: Mapping[str, int], states: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.channels = folder, channels
        self.per_state = {
            name: max(1, min(SAMPLE_ROWS, SAMPLE_BYTES // (4 * size)) // max(states, 1))
            for name, size in channels.items()
        }

    def add(self, name: str, rows: Floats, state: int) -> None:
        """Store rows of state number `state`, evenly spaced; fewer are repeated."""
        count = self.per_state[name]
        chosen = rows[np.arange(count) * len(rows) // count]
        path = self._path(name)
        with path.open("r+b" if path.exists() else "w+b") as file:
            file.seek(state * chosen.nbytes)
            file.write(np.ascontiguousarray(chosen, np.float32).tobytes())

    def complete(self, states: int) -> bool:
        """Whether the rows of that many states are there."""
        return all(
            self._path(name).is_file()
            and self._path(name).stat().st_size >= 4 * size * self.per_state[name] * states
            for name, size in self.channels.items()
        )

    def read(self, name: str) -> Floats:
        """All rows [n, K] of a tensor."""
        data = np.fromfile(self._path(name), np.float32)
        return data.reshape(-1, self.channels[name])

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}{ROW_SUFFIX}"


@dataclass(frozen=True)
class Origin:
    """What a range file belongs to: hashes of the model and of the prompts, and the settings.

    A model that is not exported yet has no hash.
    """

    model_sha256: str | None
    prompts_sha256: str
    settings: dict[str, Any]

    def differences(self, found: Origin) -> list[str]:
        """What `found` was made for that is not this."""
        differences = []
        if self.model_sha256 not in (None, found.model_sha256):
            differences.append("another model")
        if self.prompts_sha256 != found.prompts_sha256:
            differences.append("other prompts")
        changed = [
            f"{name.replace('_', ' ')}: there {_shown(theirs)}, here {_shown(ours)}"
            for name, ours in self.settings.items()
            for theirs in (found.settings.get(name),)
            if theirs != ours
        ]
        if changed:
            differences.append(f"other settings ({'; '.join(changed)})")
        return differences


class RangeFile:
    """Ranges by site name, saved as readable JSON."""

    def __init__(self, path: Path, origin: Origin, channels: Mapping[str, int]) -> None:
        self.path, self.origin = path, origin
        self.done = 0
        self.tensors = {name: TensorRange.empty(size) for name, size in channels.items()}
        if path.is_file():
            self._read()

    def forget(self) -> None:
        """Start again."""
        self.done = 0
        self.tensors = {
            name: TensorRange.empty(len(found.channels)) for name, found in self.tensors.items()
        }

    def save(self) -> None:
        """Replace the file."""
        tensors = {name: found.data() for name, found in sorted(self.tensors.items())}
        data = {"version": VERSION, **vars(self.origin), "states": self.done, "tensors": tensors}
        write_whole(self.path, _json(data).encode())

    def _read(self) -> None:
        try:
            data = json.loads(self.path.read_text(encoding="utf-8"))
            found = Origin(data["model_sha256"], data["prompts_sha256"], dict(data["settings"]))
            tensors = {name: TensorRange.read(item) for name, item in data["tensors"].items()}
            done, version = int(data["states"]), data["version"]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise LopaError(f"{self.path} is damaged ({error}); {START_AGAIN}") from None
        differences = self.origin.differences(found)
        if version != VERSION:
            differences.insert(0, f"format {version}, not {VERSION}")
        if differences:
            raise LopaError(f"{self.path} was made for {' and '.join(differences)}; {START_AGAIN}")
        self.tensors, self.done = tensors, done


def collect_ranges(
    graph: StepGraph,
    sites: Sequence[Site],
    states: StateFolder,
    ranges: RangeFile,
    samples: RowSamples,
    progress: Progress,
) -> None:
    """Run every state that `ranges` has not seen and take its activations in."""
    names = states.names()
    if ranges.done > len(names) or not samples.complete(ranges.done):
        ranges.forget()
    if ranges.done == len(names):
        return
    fetch = ActivationReader(graph, sites)
    saved = time.monotonic()
    for number in range(ranges.done, len(names)):
        progress("reading activations", number, len(names))
        feeds = states.load(names[number])
        for name, rows in fetch(feeds):
            ranges.tensors[name].add(rows)
            samples.add(name, rows, number)
        ranges.done = number + 1
        if time.monotonic() - saved > SAVE_SECONDS:
            ranges.save()
            saved = time.monotonic()
    ranges.save()


class ActivationReader:
    """A session of the graph whose activation tensors are outputs too."""

    def __init__(self, graph: StepGraph, sites: Sequence[Site]) -> None:
        model = onnx.ModelProto()
        model.CopyFrom(graph.model)
        del model.graph.output[:]
        element = onnx.TensorProto.FLOAT
        if graph.stored[sites[0].products[0].weight].data_type != element:
            element = onnx.TensorProto.FLOAT16
        for site in sites:
            model.graph.output.append(
                onnx.helper.make_tensor_value_info(site.tensor, element, ["n", "k"])
            )
        self.sites = sites
        self.widths = {site.name: graph.depth(site.products[0]) for site in sites}
        self.session = open_session(model, graph.folder)

    def __call__(self, feeds: Feeds) -> Iterator[tuple[str, Floats]]:
        """Yield site name and rows [n, K], padding left out, a bounded number at a time."""
        live, asked = live_rows(feeds), asked_rows(feeds)
        for part in self._parts(len(live)):
            outputs = self.session.run([site.tensor for site in part], feeds)
            for site, rows in zip(part, outputs, strict=True):
                chosen = rows[asked if site.is_head else live]
                yield site.name, np.asarray(chosen, np.float32)

    def _parts(self, rows: int) -> Iterator[list[Site]]:
        part: list[Site] = []
        size = 0
        for site in self.sites:
            own = 4 * rows * self.widths[site.name]
            if part and size + own > FETCHED_BYTES:
                yield part
                part, size = [], 0
            part.append(site)
            size += own
        yield part


def _shown(setting: Any) -> str:
    return "the default" if setting is None else str(setting)


def _json(data: Mapping[str, Any]) -> str:
    """One line per tensor."""
    head = {key: value for key, value in data.items() if key != "tensors"}
    lines = [
        f" {json.dumps(key)}: {json.dumps(value, sort_keys=True)}" for key, value in head.items()
    ]
    tensors = [
        f"  {json.dumps(name)}: {json.dumps(item, sort_keys=True)}"
        for name, item in data["tensors"].items()
    ]
    return "{\n" + ",\n".join(lines) + ',\n "tensors": {\n' + ",\n".join(tensors) + "\n }\n}\n"
