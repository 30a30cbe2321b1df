import numpy as np
import pytest
from lopa.tools.demo.objective import (
    BLOCK,
    FILLER_WEIGHT,
    KINDS,
    Sample,
    Specials,
    assemble,
    block_attention,
    block_numbers,
    collate,
    draw_masked,
    fill_blocks,
    masked_sample,
    next_token_sample,
    rising_ratios,
)

EOS, MASK = 90, 91
SPECIALS = Specials(EOS, MASK)
PROMPT = np.array([1, 2, 3])
ANSWER = fill_blocks(list(range(10, 30)), EOS)


def test_answers_end_in_end_of_text_and_fill_their_block() -> None:
    assert fill_blocks([5] * 3, EOS).tolist() == [5] * 3 + [EOS] * 13
    assert len(fill_blocks([5] * 15, EOS)) == 16
    assert fill_blocks([5] * 16, EOS).tolist() == [5] * 16 + [EOS] * 16
    assert len(fill_blocks([5] * 3, EOS, extra_blocks=1)) == 32


def test_blocks_count_from_the_end_of_the_prompt() -> None:
    assert block_numbers(2, 33).tolist() == [0] * 2 + [1] * 16 + [2] * 16 + [3]


def test_block_causal_attention_with_two_views() -> None:
    groups = np.array([0, 0, 1, 2, 1, 2])
    views = np.array([-1, -1, 0, 0, 1, 1])
    expected = [
        [1, 1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 0, 0, 1, 0],
        [1, 1, 0, 0, 1, 1],
    ]
    assert block_attention(groups, views).astype(int).tolist() == expected


def test_window_rows_see_the_prefix_and_the_whole_window() -> None:
    groups = np.minimum(np.array([0, 1, 2, 3]), 2)  # a window that starts at block 2
    views = np.array([-1, 0, 0, 0])
    expected = [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1], [1, 1, 1, 1]]
    assert block_attention(groups, views).astype(int).tolist() == expected


def test_assemble_hides_asks_and_repeats_positions() -> None:
    shown = np.arange(10, 26)
    first, second = np.zeros(16, bool), np.zeros(16, bool)
    first[[0, 5]] = True
    second[3] = True
    sample = assemble(PROMPT, shown, [first, second], block_numbers(3, 16), SPECIALS)
    assert sample.ids[:9].tolist() == [1, 2, 3, MASK, 11, 12, 13, 14, MASK]
    assert sample.ids[19 + 3] == MASK
    assert sample.positions[:4].tolist() == [0, 1, 2, 3]
    assert sample.positions[19:22].tolist() == [3, 4, 5]
    # Row i-1 predicts position i; the first token is asked from the last prompt row.
    assert np.flatnonzero(sample.weights).tolist() == [2, 3 + 4, 19 + 2]
    assert sample.targets[[2, 7, 21]].tolist() == [10, 15, 13]
    assert not sample.attend[3:19, 19:].any()
    assert not sample.attend[19:, 3:19].any()


def test_next_token_sample_is_causal_over_clean_text() -> None:
    sample = next_token_sample(PROMPT, ANSWER, SPECIALS)
    assert (sample.attend == np.tri(35, dtype=bool)).all()
    assert MASK not in sample.ids
    assert np.flatnonzero(sample.weights).tolist() == list(range(2, 34))
    assert (sample.targets[2:34] == ANSWER).all()
    # Twenty tokens and the first end-of-text count fully, the filling less.
    assert sample.weights[2:34].tolist() == [1.0] * 21 + [FILLER_WEIGHT] * 11


@pytest.mark.parametrize("kind", KINDS)
def test_loss_is_exactly_on_hidden_positions(kind: str) -> None:
    rng = np.random.default_rng(1)
    answer = fill_blocks(list(range(10, 70)), EOS)
    for _ in range(30):
        sample = masked_sample(rng, PROMPT, answer, SPECIALS, kind)
        hidden = np.flatnonzero(sample.ids == MASK)
        assert len(hidden) > 0
        asked = set(np.flatnonzero(sample.weights).tolist())
        assert asked == {_row_before(sample, position) for position in hidden.tolist()}
        for row in asked:
            assert sample.targets[row] == answer[sample.positions[row] + 1 - len(PROMPT)]
        assert sample.attend.diagonal().all()


def _row_before(sample: Sample, index: int) -> int:
    first_of_answer = sample.positions[index] == len(PROMPT)
    return len(PROMPT) - 1 if first_of_answer else index - 1


def test_windows_are_at_most_four_blocks_and_nothing_lies_beyond() -> None:
    rng = np.random.default_rng(2)
    answer = fill_blocks(list(range(10, 85)), EOS, extra_blocks=2)  # seven blocks
    saw_full, saw_prefix = False, False
    for _ in range(100):
        sample = masked_sample(rng, PROMPT, answer, SPECIALS, "window")
        blocks = (sample.positions - len(PROMPT)) // BLOCK
        hidden_blocks = blocks[sample.ids == MASK]
        assert hidden_blocks.max() - hidden_blocks.min() < 4
        saw_full |= bool(sample.attend.all())
        saw_prefix |= not sample.attend[0].all()
        last = int(np.flatnonzero(sample.ids == MASK)[-1])
        same_view = sample.positions[len(PROMPT) : last + 1]
        assert sample.attend[last, : len(PROMPT)].all()
        assert len(same_view) > 0
    assert saw_full
    assert saw_prefix


def test_bidirectional_sees_everything() -> None:
    sample = masked_sample(np.random.default_rng(3), PROMPT, ANSWER, SPECIALS, "bidirectional")
    assert sample.attend.all()
    assert len(sample.ids) == 35


def test_ratios_rise_and_something_is_always_hidden() -> None:
    rng = np.random.default_rng(4)
    for _ in range(50):
        ratios = rising_ratios(rng, 4)
        assert (np.diff(ratios) >= 0).all()
        assert draw_masked(rng, ratios).any()
    assert draw_masked(rng, np.array([0.0, 0.0]))[16:].sum() == 1
    assert draw_masked(rng, np.array([0.0, 1.0])).tolist() == [False] * 16 + [True] * 16


def test_padding_rows_see_only_themselves() -> None:
    short = next_token_sample(PROMPT, fill_blocks([7], EOS), SPECIALS)
    long = next_token_sample(PROMPT, ANSWER, SPECIALS)
    batch = collate([short, long], SPECIALS)
    assert batch.ids.shape == (2, 35)
    assert (batch.attend[0, 19:, 19:] == np.eye(16, dtype=bool)).all()
    assert not batch.attend[0, 19:, :19].any()
    assert not batch.attend[0, :19, 19:].any()
    assert batch.weights[0, 19:].sum() == 0
