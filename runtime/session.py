"""The public API: open a bundle, generate, stream one event per step, from any thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import Any

from .contract import LopaError
from .decoder import Decoder, StepEvent
from .engines import open_engine
from .engines.protocol import DecodeState, Program
from .manifest import BundleManifest, read_bundle, verify_files
from .memory import smaller
from .options import DecodeOptions, Plan
from .pool import PooledState, StatePool
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


class Tokenizer:
    """The text codec of a bundle, loaded once on first use by whichever thread needs it."""

    def __init__(self, folder: Path, manifest: BundleManifest) -> None:
        self._folder, self._stops = folder, manifest.model.stop_token_ids
        self._codec: TextCodec | None = None
        self._loading = threading.Lock()

    @property
    def codec(self) -> TextCodec:
        """The codec; raises PromptError where the bundle has none."""
        with self._loading:
            if self._codec is None:
                self._codec = TextCodec(self._folder, self._stops)
            return self._codec


class Session:
    """A loaded bundle, for any number of threads.

    Up to `decodes` prompts are decoded at the same time, each in a state of its own; who comes
    later waits. Weights and tokenizer are loaded once.
    """

    def __init__(
        self,
        folder: Path,
        manifest: BundleManifest,
        program: Program,
        decodes: int = 1,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        """Decode with `program`; states are made when they are needed first."""
        self.folder, self.manifest, self.program = folder, manifest, program
        self._tokenizer = tokenizer or Tokenizer(folder, manifest)
        self._pool = StatePool(lambda: PooledState(program.decode_state(), manifest.model), decodes)

    @property
    def codec(self) -> TextCodec:
        """Tokenizer and chat template, loaded on first use."""
        return self._tokenizer.codec

    @property
    def decodes(self) -> int:
        """Most decodes at the same time."""
        return self._pool.bound

    @property
    def free(self) -> int:
        """How many more decodes could start now without waiting."""
        return self._pool.free

    def fork(self, decodes: int = 1) -> Session:
        """Return a session with states of its own; program and tokenizer are shared."""
        return Session(self.folder, self.manifest, self.program, decodes, self._tokenizer)

    @contextmanager
    def state(self) -> Iterator[DecodeState]:
        """Hold a decode state for direct use of the engine; its cache is anyone's afterwards."""
        with self._pool.borrow() as lease:
            yield lease.pooled.state

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

        `on_step` is called after every step; its time does not count, nor does waiting for a free
        state. Raises LopaError where that would be for ever (see `stream`).
        """
        ids, plan = self._prepared(prompt, prompt_ids, raw, options, settings)
        with self._pool.borrow() as lease:
            return self._decode(lease.pooled.decoder(plan), ids, plan.sampler.seed, on_step)

    def _decode(
        self,
        decoder: Decoder,
        ids: list[int],
        seed: int,
        on_step: Callable[[StepEvent], None] | None,
    ) -> Result:
        """Decode to the end; events are read while the decoder is still ours."""
        started = time.perf_counter()
        steps = forwards = rows = fast_steps = repeats = 0
        limited = False
        last: StepEvent | None = None
        for last in decoder.steps(ids, seed):
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
        """Decode a prompt, yielding one event per step.

        Settings and prompt are checked at the call. From its first step on the stream holds one of
        the session's states, until it ends, is closed, or is garbage-collected; whichever thread
        goes on with it. To start a decode while unfinished streams of the same thread hold all
        states is a LopaError, since none would ever be free.
        """
        ids, plan = self._prepared(prompt, prompt_ids, raw, options, settings)
        return self._steps(ids, plan)

    def _prepared(
        self,
        prompt: str | None,
        prompt_ids: Sequence[int] | None,
        raw: bool,
        options: DecodeOptions | None,
        settings: dict[str, Any],
    ) -> tuple[list[int], Plan]:
        """Check everything; returns token ids and the plan of the decode."""
        options = _merge(options, settings)
        ids = self.encode(prompt, prompt_ids, raw)
        options.check(self.manifest)
        options.check_prompt(len(ids), self.manifest)
        return ids, options.resolved(len(ids), self.manifest)

    def _steps(self, ids: list[int], plan: Plan) -> Iterator[StepEvent]:
        """Hold a state from the first step on."""
        with self._pool.borrow() as lease:
            for event in lease.pooled.decoder(plan).steps(ids, plan.sampler.seed):
                yield event
                lease.used_here()

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


def open_bundle(
    path: str | Path,
    *,
    provider: str = "cpu",
    threads: int = 0,
    verify: bool = True,
    strict: bool = False,
    low_memory: bool = False,
    runtime_cache: Path | None = None,
    decodes: int = 1,
) -> Session:
    """Load a bundle for decoding.

    Files are compared with the manifest's sha256 first; `verify=False` skips that. `threads` 0
    lets the engine library choose. On a GPU `strict` makes a CUDA graph that cannot be captured an
    error. `low_memory` opens the instances of the smallest window alone (`memory.smaller`).
    `runtime_cache` is where TensorRT for RTX keeps the kernels it compiles, by default beside the
    bundle. `decodes` is how many prompts may be decoded at the same time, from as many threads.
    Raises LopaError for anything wrong with the bundle.
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
    program = open_engine(
        folder, manifest, provider, threads, strict=strict, runtime_cache=runtime_cache
    )
    session = Session(folder, manifest, program, decodes)
    with session.state():  # what is wrong with a first one is said here, not in the first decode
        return session


def _merge(options: DecodeOptions | None, settings: dict[str, Any]) -> DecodeOptions:
    return (options or DecodeOptions()).replace(**settings)
