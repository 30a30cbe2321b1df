from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from lopa.calibration.fidelity import Fidelity, same_tokens
from lopa.calibration.gate import Kept, raise_sites
from lopa.calibration.plan import SitePlan
from lopa.calibration.recipe import Recipe
from lopa.calibration.sensitivity import Sensitivity
from lopa.calibration.sites import StepGraph, find_sites

from .conftest import Run

HARM = (0.01, 0.4, 0.02, 0.3, 0.0, 0.2, 0.1, 0.05, 0.03)  # of the nine sites of the tiny model


def measured(graph: StepGraph) -> tuple[list[SitePlan], list[Sensitivity]]:
    plans = [
        SitePlan(site, {product.name: "int8" for product in site.products}, "minmax", 1.0, noise=n)
        for site, n in zip(find_sites(graph), reversed(HARM), strict=True)
    ]
    alone = [
        Sensitivity(plan.site.name, 30.0, Fidelity(100, 1 - harm / 10, 1.0, harm))
        for plan, harm in zip(plans, HARM, strict=True)
    ]
    return plans, alone


def total(plans: Sequence[SitePlan]) -> Kept:
    """The drift of every site that is still in integers, added up; all tokens the same."""
    drift = sum(harm for plan, harm in zip(plans, HARM, strict=True) if plan.integer)
    return Kept(Fidelity(100, 1.0, 1.0, drift), 1.0)


def test_as_few_sites_as_needed_are_kept_higher(tiny_graph: StepGraph) -> None:
    plans, alone = measured(tiny_graph)
    stages: list[str] = []
    recipe = Recipe("r", (), agreement=0.9, drift=0.25)
    chosen, kept = raise_sites(
        plans, alone, recipe, total, lambda stage, done, of: stages.append(stage)
    )
    raised = [index for index, plan in enumerate(chosen) if not plan.integer]
    assert raised == [1, 3, 5]  # 0.4, 0.3 and 0.2: without the last one 0.41 would remain
    assert kept == total(chosen)
    assert chosen[1].precisions == dict.fromkeys(plans[1].precisions, "int8-weight")
    assert chosen[1].reason == (
        "alone it changes 4.00% of the tokens and drifts 0.40000 nats, signal to noise 13.0 dB"
    )
    assert chosen[0] == plans[0]
    assert stages[:3] == [f"measuring with {count} sites kept higher" for count in (0, 9, 4)]


def test_nothing_is_raised_when_the_tokens_agree(tiny_graph: StepGraph) -> None:
    plans, alone = measured(tiny_graph)
    recipe = Recipe("r", (), agreement=0.0, drift=2.0)
    assert raise_sites(plans, alone, recipe, total, lambda *news: None)[0] == plans


def test_without_sensitivities_the_noisiest_go_first(tiny_graph: StepGraph) -> None:
    plans, _ = measured(tiny_graph)
    recipe = Recipe("r", (), agreement=0.0, drift=1.11 - 0.05 - 0.1 - 0.2 + 1e-6)
    chosen, _ = raise_sites(plans, [], recipe, total, lambda *news: None)
    noisiest = sorted(range(9), key=lambda index: -HARM[::-1][index])
    raised = [index for index, plan in enumerate(chosen) if not plan.integer]
    assert set(raised) == set(noisiest[: len(raised)])
    assert total(chosen).steps.drift <= recipe.drift


def test_recipe_is_followed_when_nothing_helps(tiny_graph: StepGraph) -> None:
    plans, alone = measured(tiny_graph)
    recipe = Recipe("r", (), agreement=1.0, drift=0.0)
    hopeless = Kept(Fidelity(100, 0.5, 0.5, 1.0))
    chosen, kept = raise_sites(plans, alone, recipe, lambda tried: hopeless, lambda *n: None)
    assert chosen == plans
    assert kept == hopeless


def test_sites_stay_raised_when_the_decodes_alone_differ(tiny_graph: StepGraph) -> None:
    plans, alone = measured(tiny_graph)
    differ = Kept(Fidelity(100, 1.0, 1.0, 0.0), tokens=0.9, noise=0.001)
    chosen, kept = raise_sites(
        plans, alone, Recipe("r", ()), lambda tried: differ, lambda *news: None
    )
    assert not any(plan.integer for plan in chosen)
    assert kept == differ


@pytest.mark.parametrize(
    ("tokens", "noise", "enough"),
    [(0.99, 0.0, True), (0.98, 0.004, False), (0.98, 0.006, True), (None, 0.0, False)],
)
def test_decodes_count_within_their_noise(tokens: float | None, noise: float, enough: bool) -> None:
    steps = Fidelity(100, 1.0, 1.0, 0.0)
    assert Kept(steps, tokens, noise).reaches(Recipe("r", (), tokens=0.99)) is enough


def test_steps_count_too() -> None:
    recipe = Recipe("r", (), agreement=0.99, drift=0.01)
    assert not Kept(Fidelity(100, 0.98, 1.0, 0.0), 1.0).reaches(recipe)
    assert not Kept(Fidelity(100, 1.0, 1.0, 0.02), 1.0).reaches(recipe)


def test_same_tokens() -> None:
    equal, shorter, other = ((1, 2), (1, 2)), ((1, 2, 3, 4), (1, 2)), ((5, 6), (6, 5))
    assert same_tokens([equal, equal]) == (1.0, 0.0)
    share, noise = same_tokens([equal, shorter, other])
    assert share == 4 / 8
    assert noise == pytest.approx((1 + 0 + 1) ** 0.5 / 8)
    assert same_tokens([((), ())]) == (1.0, 0.0)


def test_quantised_graph_is_decoded(int8: Run) -> None:
    """Random weights are chaotic, but some tokens of the six decodes stay."""
    kept = int8.result.kept
    assert kept.tokens is not None
    assert 0.05 < kept.tokens < 1
    assert 0 < kept.noise < 0.3
    assert len(json.loads((int8.work / "answers.json").read_text())) == 6
    assert not list(int8.work.glob("trial-*"))


def test_a_recipe_without_integer_activations_is_measured_once(tiny_graph: StepGraph) -> None:
    plans, _ = measured(tiny_graph)
    weights = [plan.raised("") for plan in plans]
    hopeless, tried = Kept(Fidelity(100, 0.5, 0.5, 1.0)), []

    def measure(chosen: Sequence[SitePlan]) -> Kept:
        tried.append(chosen)
        return hopeless

    assert raise_sites(weights, [], Recipe("r", ()), measure, lambda *n: None) == (
        weights,
        hopeless,
    )
    assert len(tried) == 1
