"""A bundle as other evaluation harnesses see it: text in, text up to a stop string out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...runtime.contract import LopaError
from ...runtime.options import DecodeOptions, check_names
from ...runtime.session import Result, Session, open_bundle
from ..prompt_lines import PromptLineError
from .record import bundle_record

# Names that harnesses have for the token budget of one request, the first one given counts.
TOKEN_LIMITS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
SAMPLING_TEMPERATURE = 1.0  # of a request that asks for sampling and names no temperature
COSTS = ("tokens", "useful_tokens", "steps", "forwards", "rows", "seconds")
Request = tuple[str, Mapping[str, Any]]  # rendered prompt and generation settings


@dataclass(frozen=True)
class Plan:
    """One checked request: prompt ids, settings, stop strings."""

    ids: list[int]
    options: DecodeOptions
    until: tuple[str, ...]


class CompletionModel:
    """An open bundle with default settings, and what its decodes have cost so far."""

    def __init__(
        self,
        bundle: str | Path,
        *,
        provider: str = "cpu",
        threads: int = 0,
        verify: bool = True,
        **settings: Any,
    ) -> None:
        check_names(settings, "model argument", ("bundle", "provider", "threads", "verify"))
        self.options = DecodeOptions(**settings)
        self.session: Session = open_bundle(
            bundle,
            provider=provider,
            threads=threads,
            verify=verify,
            strict=self.options.strict is True,
        )
        self.options.check(self.session.manifest)
        self.results: list[Result] = []
        self.shortened = 0  # requests whose token budget was cut to what the context holds

    def plan(self, requests: Sequence[Request]) -> list[Plan]:
        """Check all requests before the first is decoded; raises one error that lists the faults.

        Equal requests that sample get seeds in a row.
        """
        plans, faults = [], []
        seen: Counter[str] = Counter()
        for number, (prompt, asked) in enumerate(requests, 1):
            try:
                options, until = request_settings(self.options, asked)
                ids = self.session.encode(prompt, raw=True)
                options = self._with_budget(options, len(ids))
                if options.temperature:
                    key = f"{prompt}\0{sorted(asked.items())}"
                    options = options.replace(seed=options.seed + seen[key])
                    seen[key] += 1
                options.check(self.session.manifest)
                options.check_prompt(len(ids), self.session.manifest)
            except LopaError as error:
                faults.append(f"request {number}: {error}")
            else:
                plans.append(Plan(ids, options, until))
        if faults:
            raise PromptLineError(faults)
        return plans

    def _with_budget(self, options: DecodeOptions, prompt: int) -> DecodeOptions:
        """Move a request's token budget into what the strategy and the context can do.

        Tasks name a budget without knowing either; for one that is not a number the check follows.
        """
        manifest, budget = self.session.manifest, options.max_new_tokens
        if not isinstance(budget, int) or budget < 1:
            return options
        least, room = options.least_new_tokens(manifest.model), options.room(prompt, manifest)
        if 0 < room < budget:
            self.shortened += 1
            budget = room
        return options.replace(max_new_tokens=max(budget, least))

    def complete(self, plan: Plan) -> str:
        """Decode one request; its text ends before the first stop string."""
        result = self.session.generate(prompt_ids=plan.ids, options=plan.options)
        self.results.append(result)
        return before(result.text, plan.until)

    def render(self, messages: Sequence[dict[str, str]], continued: bool = False) -> str:
        """Messages under the bundle's chat template.

        It ends with the generation prompt or, if `continued`, inside the last message.
        """
        rendered = self.session.codec.render(messages, generation_prompt=not continued)
        if not continued:
            return rendered
        last = messages[-1]["content"].strip()
        return rendered[: rendered.rindex(last) + len(last)]

    @property
    def record(self) -> dict[str, Any]:
        """Bundle, settings and costs of all decodes, for the harness's results file."""
        in_force = self.options.in_force
        settings = {name: value for name, value in in_force.items() if value is not None}
        costs = {name: sum(getattr(result, name) for result in self.results) for name in COSTS}
        tokens, steps, seconds = costs["tokens"], costs["steps"], costs["seconds"]
        return {
            "bundle": bundle_record(self.session),
            "settings": settings,
            "requests": len(self.results),
            **costs,
            "seconds": round(seconds, 6),
            "tpf": round(tokens / steps, 4) if steps else 0.0,
            "tokens_per_second": round(tokens / seconds, 4) if seconds else 0.0,
            "limited": sum(result.limited for result in self.results),
            "shortened": self.shortened,
        }


def request_settings(
    options: DecodeOptions, asked: Mapping[str, Any]
) -> tuple[DecodeOptions, tuple[str, ...]]:
    """Settings of one request over `options`, and its stop strings.

    `until`, the names of TOKEN_LIMITS, `do_sample` and every decode setting are understood; raises
    LopaError for anything else. Without `do_sample` and `temperature` the temperature of `options`
    stays.
    """
    given = dict(asked)
    until = given.pop("until", None) or []
    stops = [until] if isinstance(until, str) else until
    if not (isinstance(stops, list) and all(isinstance(stop, str) for stop in stops)):
        raise LopaError(f"until is {until!r}, expected text or a list of texts")
    limits = [given.pop(name, None) for name in TOKEN_LIMITS]
    limit = next((value for value in limits if value is not None), None)
    if limit is not None:
        given["max_new_tokens"] = limit
    samples = given.pop("do_sample", None)
    if samples is False:
        given["temperature"] = 0.0
    elif samples and "temperature" not in given:
        given["temperature"] = options.temperature or SAMPLING_TEMPERATURE
    check_names(given, "generation setting", ("until", "do_sample", *TOKEN_LIMITS))
    return options.replace(**given), tuple(stop for stop in stops if stop)


def before(text: str, stops: Sequence[str]) -> str:
    """`text` up to the first of `stops` in it."""
    return text[: min((place for stop in stops if (place := text.find(stop)) >= 0), default=None)]
