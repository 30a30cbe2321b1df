from __future__ import annotations

from collections.abc import Sequence

from lopa.calibration.fidelity import Fidelity
from lopa.calibration.plan import SitePlan
from lopa.calibration.recipe import Recipe
from lopa.calibration.sensitivity import Sensitivity, raise_sites
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


def total(plans: Sequence[SitePlan]) -> Fidelity:
    """The drift of every site that is still in integers, added up."""
    drift = sum(harm for plan, harm in zip(plans, HARM, strict=True) if plan.integer)
    return Fidelity(100, 1.0, 1.0, drift)


def test_as_few_sites_as_needed_are_kept_higher(tiny_graph: StepGraph) -> None:
    plans, alone = measured(tiny_graph)
    stages: list[str] = []
    recipe = Recipe("r", (), agreement=0.9, drift=0.25)
    chosen, fidelity = raise_sites(
        plans, alone, recipe, total, lambda stage, done, of: stages.append(stage)
    )
    raised = [index for index, plan in enumerate(chosen) if not plan.integer]
    assert raised == [1, 3, 5]  # 0.4, 0.3 and 0.2: without the last one 0.41 would remain
    assert fidelity == total(chosen)
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
    assert total(chosen).drift <= recipe.drift


def test_recipe_is_followed_when_nothing_helps(tiny_graph: StepGraph) -> None:
    plans, alone = measured(tiny_graph)
    recipe = Recipe("r", (), agreement=1.0, drift=0.0)
    hopeless = Fidelity(100, 0.5, 0.5, 1.0)
    chosen, fidelity = raise_sites(plans, alone, recipe, lambda tried: hopeless, lambda *n: None)
    assert chosen == plans
    assert fidelity == hopeless


def test_every_site_is_measured_alone(int8: Run) -> None:
    found = int8.result.sensitivities
    assert [item.site for item in found] == [plan.site.name for plan in int8.result.plans]
    assert all(item.fidelity.rows == found[0].fidelity.rows > 0 for item in found)
    assert all(item.snr_db is not None and 20 < item.snr_db < 60 for item in found)
    whole = int8.result.fidelity.drift
    assert all(0 < item.fidelity.drift < 1.5 * whole for item in found)
