from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lopa.graphs.targets.tensorrt.progress import Share, make_monitor

from .recording_library import Library


def test_a_step_of_an_inner_phase_counts_for_its_part_of_the_outer_one() -> None:
    share = Share()
    share.start("engine", None, 4)
    assert share.complete("engine", 0) == 0.25
    share.start("graph", "engine", 2)
    assert share.complete("graph", 0) == 0.375
    share.start("node", "graph", 2)
    assert share.complete("node", 0) == pytest.approx(0.4375)
    share.finish("node")
    share.finish("graph")
    assert share.complete("engine", 1) == 0.5


def test_phases_that_end_out_of_order() -> None:
    share = Share()
    share.start("engine", None, 2)
    share.start("costs", "engine", 2)
    share.finish("engine")
    reached = share.complete("costs", 0)
    assert share.complete("costs", 1) >= reached
    assert share.complete("never started", 3) >= reached


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["start", "complete", "finish"]),
            st.sampled_from("abcd"),
            st.sampled_from(["a", "b", "c", "d", None]),
            st.integers(0, 5),
        )
    )
)
def test_the_share_only_grows(events: list[tuple[str, str, str | None, int]]) -> None:
    """Whatever the library says, parents that contain each other included."""
    share, reached = Share(), 0.0
    for kind, name, parent, number in events:
        if kind == "start":
            share.start(name, parent, number)
        elif kind == "finish":
            share.finish(name)
        else:
            now = share.complete(name, number)
            assert reached <= now <= 1
            reached = now


def test_a_stopped_build_is_told_to_the_library() -> None:
    def stop(share: float) -> None:
        raise KeyboardInterrupt

    monitor = make_monitor(Library("11.4"), stop)
    monitor.phase_start("engine", None, 2)
    assert monitor.step_complete("engine", 0) is False
    assert isinstance(monitor.stopped, KeyboardInterrupt)
