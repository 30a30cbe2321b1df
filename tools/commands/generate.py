"""Decode prompts with a bundle.

On a terminal the window is shown while it fills in: green is filled by the last step, magenta the
token by which a lookahead branch ran ahead and won, dim what is still a guess. Piped, or with
several prompts at the same time (--parallel), only the answers are printed, the summary goes to
stderr.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TextIO

from ...runtime.contract import LopaError
from ..arguments import text
from ..decode_flags import add_decode_flags, add_engine_flags, decode_options, open_session
from ..display.report import NO_ROOM, dim
from ..parallel import add_parallel_flag, in_order, open_parallel
from ..paths import file_or_stdin, output_stream, path, writes_to_stdout
from ..prompt_lines import (
    Prompt,
    add_prompt_limit,
    check_prompts,
    read_prompts,
    single_prompt,
)

if TYPE_CHECKING:
    from ...runtime.decoder import StepEvent
    from ...runtime.options import DecodeOptions
    from ...runtime.session import Result, Session
    from ..display.live import LiveWindow
    from ..parallel import GoOn
    from ..step_trace import Trace

    Decoded = tuple[Prompt, Result, Sequence[StepEvent]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `lopa generate`."""
    parser.add_argument("bundle", metavar="BUNDLE", type=path, help="folder made by lopa build")
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument(
        "--prompt", metavar="TEXT", type=text, help="one prompt; - reads standard input"
    )
    prompt.add_argument(
        "--prompts",
        metavar="FILE",
        type=file_or_stdin,
        help='JSON lines {"id": ..., "prompt": TEXT} or {"id": ..., "prompt_ids": [...]}; '
        "- reads standard input",
    )
    parser.add_argument("--raw", action="store_true", help="no chat template around the prompt")
    add_prompt_limit(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object per prompt")
    parser.add_argument(
        "--trace",
        metavar="FILE",
        type=output_stream,
        help="write one JSON line per step, all prompts; - is standard output, answers then go to "
        "standard error",
    )
    add_parallel_flag(parser)
    add_decode_flags(parser)
    add_engine_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Check all prompts, then decode one after the other, or several at the same time."""
    single = args.prompt is not None
    limit = args.max_prompt_bytes
    prompts = [single_prompt(args.prompt, limit)] if single else read_prompts(args.prompts, limit)
    from ..step_trace import open_trace

    traced = writes_to_stdout(args.trace)
    if args.json and traced:
        raise LopaError(
            f"--json and --trace {args.trace} both write to standard output; give a file to --trace"
        )
    options = decode_options(args)
    session = open_parallel(args, args.parallel, open_session)
    options.check(session.manifest)

    def encode(prompt: Prompt) -> list[int]:
        ids = session.encode(prompt.text, prompt.ids, args.raw)
        options.check_prompt(len(ids), session.manifest)
        return ids

    encoded = check_prompts(prompts, encode)
    live = sys.stdout.isatty() and not (args.json or args.quiet or args.parallel > 1 or traced)
    out = sys.stderr if traced else sys.stdout
    results: list[Result] = []
    started = time.perf_counter()
    with open_trace(args.trace) as trace:

        def decode(item: tuple[Prompt, list[int]], go_on: GoOn | None) -> Decoded:
            if go_on is not None:
                return _decode_aside(session, item, options, go_on, args.trace is not None)
            prompt, ids = item
            if live and not single:
                print(dim(_heading(prompt)))
            return prompt, _decode(session, prompt, ids, options, trace, live), ()

        items = zip(prompts, encoded, strict=True)
        for prompt, result, events in in_order(args.parallel, decode, items):
            for event in events:
                trace(prompt.id, event)
            results.append(result)
            if args.json:
                line = _record(prompt, result, args.parallel)
                print(json.dumps(line, ensure_ascii=False), flush=True)
                continue
            if not live and len(prompts) > 1:
                print(f"{chr(10) * (len(results) > 1)}==> {prompt.id} <==", file=out)
            _print_answer(result, live, args.quiet, out)
    if not (args.json or args.quiet):
        seconds = time.perf_counter() - started if args.parallel > 1 else None
        _print_totals(results, options, live, seconds, args.parallel)
    return 0


def _decode(
    session: Session,
    prompt: Prompt,
    ids: list[int],
    options: DecodeOptions,
    trace: Trace,
    live: bool,
) -> Result:
    with _window(session, len(ids), live) as window:

        def on_step(event: StepEvent) -> None:
            trace(prompt.id, event)
            if window is not None:
                window(event)

        return session.generate(prompt_ids=ids, options=options, on_step=on_step)


def _decode_aside(
    session: Session,
    item: tuple[Prompt, list[int]],
    options: DecodeOptions,
    go_on: GoOn,
    traced: bool,
) -> Decoded:
    """Decode beside other prompts; steps are kept to be written when it is this one's turn."""
    events: list[StepEvent] = []

    def on_step(event: StepEvent) -> None:
        go_on()
        if traced:
            events.append(event)

    prompt, ids = item
    return prompt, session.generate(prompt_ids=ids, options=options, on_step=on_step), events


def _window(
    session: Session, prompt_tokens: int, live: bool
) -> AbstractContextManager[LiveWindow | None]:
    if not live:
        return nullcontext()
    from ..display.live import show_window

    return show_window(session.codec, prompt_tokens)


def _print_answer(result: Result, live: bool, quiet: bool, out: TextIO) -> None:
    if live:
        from ..display.live import clean

        print(clean(result.text))
    else:
        print(result.text, file=out, flush=True)
    if not quiet:
        _print_note(_summary([result]), live)


def _print_totals(
    results: Sequence[Result],
    options: DecodeOptions,
    live: bool,
    seconds: float | None,
    parallel: int,
) -> None:
    from ...runtime.strategies.registry import BASES

    if len(results) > 1:
        beside = "" if seconds is None else f", {parallel} at the same time"
        _print_note(f"{len(results)} prompts: {_summary(results, seconds)}{beside}", live)
    if any(result.limited for result in results):
        _print_note(NO_ROOM, live)
    if BASES[options.rules].masks_budget and any(not result.text for result in results):
        _print_note(
            f"an empty answer: {options.rules} masks the whole token budget from the start, and a "
            "model trained on shorter answers ends the text at once; try --max-new-tokens 64",
            live,
        )


def _print_note(text: str, live: bool) -> None:
    """Print a closing line: below the answer on a terminal, else to stderr."""
    if live:
        print(dim(text))
    else:
        print(text, file=sys.stderr)


def _summary(results: Sequence[Result], seconds: float | None = None) -> str:
    """Totals; `seconds` from the first to the last where those of the results overlap."""
    tokens = sum(result.tokens for result in results)
    useful = sum(result.useful_tokens for result in results)
    steps = sum(result.steps for result in results)
    rows = sum(result.rows for result in results)
    if seconds is None:
        seconds = sum(result.seconds for result in results)
    if not tokens or not seconds:
        return f"{tokens} tokens, {steps} steps, {seconds:.2f} s"
    ended = f" ({useful} useful)" if useful < tokens else ""
    return (
        f"{tokens} tokens{ended}, {steps} steps, TPF {tokens / steps:.2f}, "
        f"{rows / tokens:.1f} rows/token, {seconds:.2f} s, {tokens / seconds:.0f} tokens/s"
    )


def _heading(prompt: Prompt) -> str:
    """The prompt's id and first line, cut to the terminal's width."""
    line = f"{len(prompt.ids or ())} token ids"
    if prompt.text is not None:
        line = prompt.text.strip().partition("\n")[0]
    line, width = f"[{prompt.id}] {line}", shutil.get_terminal_size().columns
    return line if len(line) <= width else f"{line[: width - 1]}…"


def _record(prompt: Prompt, result: Result, parallel: int) -> dict[str, Any]:
    """One line of --json; it says how many were decoded at the same time where that is not one."""
    record = {
        "id": prompt.id,
        "text": result.text,
        "token_ids": list(result.token_ids),
        "steps": result.steps,
        "forwards": result.forwards,
        "tokens": result.tokens,
        "tpf": round(result.tpf, 4),
        "seconds": round(result.seconds, 6),
        "rows": result.rows,
        "useful_tokens": result.useful_tokens,
        "limited": result.limited,
        "fast_steps": result.fast_steps,
        "repeats": result.repeats,
    }
    return record if parallel == 1 else {**record, "parallel": parallel}
