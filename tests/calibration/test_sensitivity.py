from __future__ import annotations

from .conftest import Run


def test_every_site_is_measured_alone(int8: Run) -> None:
    found = int8.result.sensitivities
    assert [item.site for item in found] == [plan.site.name for plan in int8.result.plans]
    assert all(item.fidelity.rows == found[0].fidelity.rows > 0 for item in found)
    assert all(item.snr_db is not None and 20 < item.snr_db < 60 for item in found)
    whole = int8.result.kept.steps.drift
    assert all(0 < item.fidelity.drift < 1.5 * whole for item in found)
