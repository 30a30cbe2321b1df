"""The public API: open a bundle, generate, stream one event per step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import index
from pathlib import Path
from typing import Any

from .contract import LopaError
from .decoder import Decoder, StepEvent
from .engines import open_engine
from .engines.protocol import Engine
from .manifest import BundleManifest, read_bundle, verify_files
from .memory import smaller
from .options import DecodeOptions, Plan
from .prompt import PromptError, TextCodec, stop_index


@dataclass(frozen=True)
class Result:
    """One decoded prompt.

    `token_ids` is everything after the prompt, before stop-token truncation in `text`. `steps`
    are engine invocations, `forwards` counts every branch, `rows` every row computed, padding
    included; a step that ran in both precisions counts twice in each. Seconds are wall-clock time
    of decoding alone.
    """

    text: str
    token_ids: tuple[int, ...]
    prompt_tokens: int
    steps: int
    forwards: int
    rows: int
    unfilled: int  # positions a schedule left masked; they hold the mask token in `token_ids`
    useful_tokens: int  # up to and including the first stop token
    seconds: float
    limited: bool  # a block was due but no instance of the bundle could hold it
    fast_steps: int = 0  # invocations of the bundle's fast graph
    repeats: int = 0  # steps run fast and then again in full

    @property
    def tokens(self) -> int:
        """Committed tokens."""
        return len(self.token_ids) - self.unfilled

    @property
    def tpf(self) -> float:
        """Committed tokens per step."""
        return self.tokens / self.steps if self.steps else 0.0


class Session:
    """A loaded bundle. Not thread-safe: one session decodes one prompt at a time."""

    def __init__(self, folder: Path, manifest: BundleManifest, engine: Engine) -> None:
        self.folder, self.manifest, self.engine = folder, manifest, engine
        self._last: tuple[Plan, Decoder] | None = None
        self._turn = 0  # decodes started so far; a stream ends when it is not the latest

    @cached_property
    def codec(self) -> TextCodec:
        """Tokenizer and chat template, loaded on first use."""
        return TextCodec(self.folder, self.manifest.model.stop_token_ids)

    def generate(
        self,
        prompt: str | None = None,
        *,
        prompt_ids: Sequence[int] | None = None,
        raw: bool = False,
        options: DecodeOptions | None = None,
        on_step: Callable[[StepEvent], None] | None = None,
        **settings: Any,
    ) -> Result:
        """Decode a prompt to the end; settings are those of DecodeOptions.

        `on_step` is called after every step; its time does not count.
        """
        options = _merge(options, settings)
        ids = self.encode(prompt, prompt_ids, raw)
        started = time.perf_counter()
        steps = forwards = rows = fast_steps = repeats = 0
        limited = False
        last: StepEvent | None = None
        for last in self._start(ids, options):
            runs = 2 if last.precision == "both" else 1
            steps, limited = steps + runs, limited or last.limited
            forwards += runs * len(last.scores)
            rows += runs * last.shape.window_rows
            fast_steps += last.precision != "full"
            repeats += runs - 1
            if on_step is not None:
                paused = time.perf_counter()
                on_step(last)
                started += time.perf_counter() - paused
        seconds = time.perf_counter() - started
        token_ids = () if last is None else tuple(int(t) for t in last.tokens[len(ids) :])
        stop = stop_index(token_ids, frozenset(self.manifest.model.stop_token_ids))
        masked = [] if last is None else last.masked[len(ids) :].tolist()
        return Result(
            text=self.codec.decode(token_ids) if (self.folder / "tokenizer.json").is_file() else "",
            token_ids=token_ids,
            prompt_tokens=len(ids),
            steps=steps,
            forwards=forwards,
            rows=rows,
            unfilled=sum(masked),
            useful_tokens=min(stop + 1, len(token_ids)) - sum(masked[: stop + 1]),
            seconds=seconds,
            limited=limited,
            fast_steps=fast_steps,
            repeats=repeats,
        )

    def stream(
        self,
        prompt: str | None = None,
        *,
        prompt_ids: Sequence[int] | None = None,
        raw: bool = False,
        options: DecodeOptions | None = None,
        **settings: Any,
    ) -> Iterator[StepEvent]:
        """Decode a prompt, yielding one event per step."""
        options = _merge(options, settings)
        return self._start(self.encode(prompt, prompt_ids, raw), options)

    def _start(self, ids: list[int], options: DecodeOptions) -> Iterator[StepEvent]:
        """Check everything at once, then return the steps of a decode."""
        options.check(self.manifest)
        options.check_prompt(len(ids), self.manifest)
        decoder = self._decoder(options.resolved(len(ids), self.manifest))
        return self._steps(decoder, ids, options.seed)

    def _steps(self, decoder: Decoder, ids: list[int], seed: int) -> Iterator[StepEvent]:
        """Yield the decoder's events while no other decode has taken over the engine's cache."""
        self._turn += 1
        turn = self._turn
        for event in decoder.steps(ids, seed):
            yield event
            if self._turn != turn:
                raise LopaError(
                    "another decode was started on this session; finish one stream before the "
                    "next, or open the bundle once per stream"
                )

    def encode(
        self, prompt: str | None, prompt_ids: Sequence[int] | None = None, raw: bool = False
    ) -> list[int]:
        """Token ids of a prompt given as text or as ids; raises PromptError."""
        if (prompt is None) == (prompt_ids is None):
            raise PromptError("give either prompt or prompt_ids")
        if prompt is not None:
            return self.codec.encode(prompt, raw)
        try:
            ids = [index(token) for token in (() if prompt_ids is None else prompt_ids)]
        except TypeError:
            raise PromptError(
                f"prompt_ids is {prompt_ids!r:.40}, expected a sequence of whole numbers"
            ) from None
        vocab = self.manifest.model.vocab_size
        wrong = [token for token in ids if not 0 <= token < vocab]
        if wrong:
            raise PromptError(f"prompt id {wrong[0]} is outside the vocabulary of {vocab}")
        if not ids:
            raise PromptError("the prompt is empty; give at least one token")
        return ids

    def _decoder(self, plan: Plan) -> Decoder:
        """Return the decoder of a plan, kept while it stays the same."""
        if self._last is None or self._last[0] != plan:
            self._last = (plan, plan.decoder(self.engine, self.manifest.model))
        return self._last[1]


def open_bundle(
    path: str | Path,
    *,
    provider: str = "cpu",
    threads: int = 0,
    verify: bool = True,
    strict: bool = False,
    low_memory: bool = False,
    runtime_cache: Path | None = None,
) -> Session:
    """Load a bundle for decoding.

    Files are compared with the manifest's sha256 first; `verify=False` skips that. `threads` 0
    lets the engine library choose. On a GPU `strict` makes a CUDA graph that cannot be captured an
    error. `low_memory` opens the instances of the smallest window alone (`memory.smaller`).
    `runtime_cache` is where TensorRT for RTX keeps the kernels it compiles, by default beside the
    bundle. Raises LopaError for anything wrong with the bundle.
    """
    folder = Path(path)
    if folder.is_file():
        raise LopaError(f"{folder} is a file, expected a bundle: the folder that lopa build makes")
    if not folder.is_dir():
        raise LopaError(f"no bundle at {folder}; make one with: lopa build CHECKPOINT -o {folder}")
    manifest = read_bundle(folder)
    if verify:
        verify_files(folder, manifest.files)
    if low_memory:
        manifest = smaller(manifest)
    engine = open_engine(
        folder, manifest, provider, threads, strict=strict, runtime_cache=runtime_cache
    )
    return Session(folder, manifest, engine)


def _merge(options: DecodeOptions | None, settings: dict[str, Any]) -> DecodeOptions:
    return (options or DecodeOptions()).replace(**settings)
