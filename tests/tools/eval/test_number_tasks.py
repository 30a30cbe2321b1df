from __future__ import annotations

import pytest
from lopa.tools.eval.tasks.competition import Competition
from lopa.tools.eval.tasks.gsm8k import Gsm8k, final_number
from lopa.tools.eval.tasks.latex import last_boxed, normal_form
from lopa.tools.eval.tasks.protocol import RowError

GSM = {"question": "How many?", "answer": "Half of 4 is 4/2=<<4/2=2>>2.\n#### 1,002"}
MATH = {"problem": "Find $x$.", "solution": "So $x = \\boxed{\\frac{1}{2}}$.", "level": "Level 1"}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("3+4=7\n#### 7", "7"),
        ("#### 7 and then 9", "7"),
        ("#### $1,234.50", "1234.50"),
        ("####-5", "-5"),
        ("It costs 3 dollars, so 12 in all.", "12"),
        ("the total is $1,200.", "1200"),
        ("minus -3.5", "-3.5"),
        ("so \\boxed{18} of 20", "18"),
        ("12 apples\nQuestion: 5 pears\nAnswer: 6", "12"),
        ("no idea", None),
        ("", None),
    ],
)
def test_final_number(text: str, number: str | None) -> None:
    assert final_number(text) == number


def test_gsm8k_reads_and_compares_numbers() -> None:
    item = Gsm8k().item(GSM)
    assert item is not None
    assert (item.id, item.check["number"]) == (None, "1002")
    assert item.prompt == "Question: How many?\nAnswer:"
    assert item.solution == "Half of 4 is 4/2=2.\n#### 1,002"
    for text, answer, correct in (
        ("#### 1002.0", "1002.0", True),
        ("1,002 dollars", "1002", True),
        ("#### 1003", "1003", False),
        ("nothing", "", False),
    ):
        verdict = Gsm8k().grade(item, text)
        assert (verdict.answer, verdict.correct) == (answer, correct)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "a"}, "expected answer, found question"),
        ({"question": "a", "answer": "5"}, "no '#### number'"),
        ({"question": 3, "answer": "#### 5"}, "question is 3, expected text"),
    ],
)
def test_gsm8k_rejects(row: dict[str, object], message: str) -> None:
    with pytest.raises(RowError, match=message):
        Gsm8k().item(row)


@pytest.mark.parametrize(
    ("text", "boxed"),
    [
        (r"so \boxed{12}", "12"),
        (r"\boxed{1} then \boxed{\frac{1}{\sqrt{2}}}.", r"\frac{1}{\sqrt{2}}"),
        (r"\fbox{3}", "3"),
        (r"$\boxed 7$ ok", "7"),
        (r"\boxed{unclosed", None),
        ("none", None),
    ],
)
def test_last_boxed(text: str, boxed: str | None) -> None:
    assert last_boxed(text) == boxed


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (r"\frac12", r"\frac{1}{2}"),
        (r"\dfrac{1}{2}", r"\frac{1}{2}"),
        ("1/2", r"\frac{1}{2}"),
        ("-3/4", r"-\frac{3}{4}"),
        (r"\sqrt3", r"\sqrt{3}"),
        (r"\left( 1, 2 \right)", "(1,2)"),
        (r"90^\circ", "90"),
        (r"50\%", "50"),
        (r"\$12", "12"),
        ("1,234", "1234"),
        ("12.50", "12.5"),
        ("3.0", "3"),
        (".5", "0.5"),
        ("x=5", "5"),
        (r"x\in[1,2]", "[1,2]"),
        (r"10\text{ cm}", "10"),
        (r"10\text{ cm}^2", "10"),
        (r"\text{Evelyn}", "Evelyn"),
        (r"12\,000", "12000"),
        ("7.", "7"),
        (r"a\le b", r"a\leq b"),
    ],
)
def test_equal_spellings(one: str, other: str) -> None:
    assert normal_form(one) == normal_form(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [("1/2", "0.5"), ("(1,2)", "(2,1)"), ("12", "120"), ("x+1", "x-1"), (r"\leq", r"\left<")],
)
def test_different_answers_stay_different(one: str, other: str) -> None:
    assert normal_form(one) != normal_form(other)


def test_math_takes_the_boxed_answer() -> None:
    task = Competition()
    item = task.item(MATH)
    assert item is not None
    assert item.check["answer"] == r"\frac{1}{2}"
    for text, answer, correct in (
        (r"Thus \boxed{\dfrac12}.", r"\dfrac12", True),
        ("The answer is: 1/2", "1/2", True),
        (r"\boxed{2} no, \boxed{3}", "3", False),
        ("\\boxed{\\frac12}\nProblem: next \\boxed{4}", r"\frac12", True),
        ("one half", "", False),
    ):
        verdict = task.grade(item, text)
        assert (verdict.answer, verdict.correct) == (answer, correct)
    row = {"problem": "p", "answer": 5, "unique_id": "test/1.json", "solution": "long"}
    named = task.item(row)
    assert named is not None
    assert (named.id, named.check["answer"]) == ("test/1.json", "5")
    with pytest.raises(RowError, match="no answer"):
        task.item({"problem": "p", "solution": "nothing boxed"})
