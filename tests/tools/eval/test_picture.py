from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import lopa as package
import pytest
from lopa.tools.eval.picture import BIN_NAMES, COLOURS, Fill, Picture, Recorder, Step, visible
from lopa.tools.eval.picture_page import write_page

PICTURE = Picture(
    title="a <title>",
    subtitle='with "quotes" & more',
    block_size=2,
    fills=(
        Fill(1, 0, "<b>", 0.995, False),
        Fill(2, 2, "\n", 0.4, True),
        Fill(2, 1, " $x$", 0.92, False),
    ),
    steps=(Step(1, 3, 0, 2), Step(2, 3, 2, 3)),
    positions=3,
    useful=2,
)


class Tags(HTMLParser):
    """Collects the tags of a page with their attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_colours_are_binned_by_confidence() -> None:
    assert len(COLOURS) == len(BIN_NAMES) == 6
    found = [Fill(1, 0, "", sure, False).bin for sure in (0.0, 0.5, 0.89, 0.9, 0.97, 0.99, 1.0)]
    assert found == [0, 1, 2, 3, 4, 5, 5]


def test_white_space_is_shown() -> None:
    assert visible(" a\n\t\x07") == "␣a↵⇥\N{REPLACEMENT CHARACTER}"


def test_the_recorder_takes_every_token_once_with_its_confidence(tiny_bundle: Path) -> None:
    session = package.open_bundle(tiny_bundle)
    ids = session.encode("the other")
    recorder = Recorder(len(ids), session.codec.piece)
    result = session.generate(
        prompt_ids=ids, lookahead=4, max_new_tokens=24, confidence=0.05, on_step=recorder
    )
    picture = recorder.picture("t", "s", 8, result.tokens, result.useful_tokens)
    assert sorted(fill.position for fill in picture.fills) == list(range(24))
    texts = {fill.position: fill.text for fill in picture.fills}
    assert [texts[i] for i in range(24)] == [session.codec.piece(t) for t in result.token_ids]
    assert [step.number for step in picture.steps] == list(range(1, result.steps + 1))
    assert sum(step.branches for step in picture.steps) == result.forwards
    assert {fill.step for fill in picture.fills if fill.ahead} == {s.number for s in picture.won}
    assert len(picture.won) > 0
    assert all(0 < fill.confidence <= 1 for fill in picture.fills)
    events = {event.step: event for event in session.stream(
        prompt_ids=ids, lookahead=4, max_new_tokens=24, confidence=0.05)}  # fmt: skip
    for fill in picture.fills:
        if fill.ahead:  # measured by probability, so both say the same
            event = events[fill.step]
            assert fill.confidence == pytest.approx(event.confidences[event.winner])


def test_the_page_is_self_contained_and_escaped(tmp_path: Path) -> None:
    write_page(PICTURE, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "a &lt;title&gt;" in page
    assert "with &#34;quotes&#34; &amp; more" in page
    assert not re.search(r"https?:|url\(|<script|<link|<img|src=", page)
    assert "prefers-color-scheme: dark" in page
    svg = re.search(r'<svg width="\d+" height="\d+" viewBox.*?</svg>', page, re.DOTALL)
    assert svg is not None
    root = ElementTree.fromstring(svg[0])
    hints = [item.text for item in root.iter("title")]
    assert "<b> at 0, step 1, confidence 0.995" in hints
    assert "↵ at 2, step 2, confidence 0.400, ran ahead" in hints
    assert "step 2: lookahead 2 of 2 won" in hints
    classes = [item.get("class") for item in root.iter()]
    assert (classes.count("c5"), classes.count("c0"), classes.count("c3")) == (1, 1, 1)
    assert (classes.count("ring"), classes.count("mark"), classes.count("band")) == (1, 1, 1)
    assert (classes.count("edge"), classes.count("stop")) == (1, 1)
    tags = Tags()
    tags.feed(page)
    spans = [attributes["class"] for tag, attributes in tags.found if tag == "span"]
    assert spans == ["c5", "c3", "c0 ahead after"]


def test_the_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra report")
    from lopa.tools.eval.picture_png import draw_png

    draw_png(PICTURE, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
