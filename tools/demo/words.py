"""Arithmetic word problems of two or three steps; every value on the way stays below 100."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import Any

from .problem import Problem

LIMIT = 99
PEOPLE = (
    ("Mia", "She", "her"), ("Tom", "He", "him"), ("Ann", "She", "her"), ("Ben", "He", "him"),
    ("Lea", "She", "her"), ("Max", "He", "him"), ("Eva", "She", "her"), ("Leo", "He", "him"),
    ("Zoe", "She", "her"), ("Sam", "He", "him"), ("Ida", "She", "her"), ("Jan", "He", "him"),
    ("Amy", "She", "her"), ("Kai", "He", "him"), ("Eli", "He", "him"), ("Joy", "She", "her"),
)  # fmt: skip
OBJECTS = (
    "apples", "shells", "stamps", "coins", "books", "cards", "pens", "stones", "cookies", "balls",
    "flowers", "stickers", "marbles", "nuts", "toys", "beads",
)  # fmt: skip
CONTAINERS = ("boxes", "bags", "jars", "baskets")
MORE = ("{P} buys {n} more.", "{P} finds {n} more {o}.", "{M} gives {p} {n} {o}.")
FEWER = ("{P} gives {n} {o} to {M}.", "{P} loses {n} of them.", "{P} sells {n} {o}.")


class _Story:
    """Sentences and worked steps around one running value."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        (self.name, self.pronoun, self.object_pronoun), (self.other, _, _) = rng.sample(PEOPLE, 2)
        self.things = rng.choice(OBJECTS)
        self.sentences: list[str] = []
        self.steps: list[str] = []
        self.value = 0

    def say(self, text: str, **numbers: object) -> None:
        names = {"N": self.name, "P": self.pronoun, "p": self.object_pronoun}
        self.sentences.append(text.format(M=self.other, o=self.things, **names, **numbers))

    def work(self, left: int, operator: str, right: int) -> int:
        results = {"+": left + right, "-": left - right, "*": left * right}
        result = left // right if operator == "/" else results[operator]
        self.steps.append(f"{left}{operator}{right}={result}")
        return result

    def open(self) -> None:
        kind = self.rng.randrange(4)
        if kind == 0:
            count, size = self.rng.randint(2, 9), self.rng.randint(2, 9)
            box = self.rng.choice(CONTAINERS)
            self.say("{N} has {count} {box} with {size} {o} each.", count=count, box=box, size=size)
            self.value = self.work(count, "*", size)
        elif kind == 1:
            red, blue = self.rng.randint(3, 40), self.rng.randint(3, 40)
            self.say("{N} has {red} red {o} and {blue} blue {o}.", red=red, blue=blue)
            self.value = self.work(red, "+", blue)
        else:
            self.value = self.rng.randint(5, 60)
            self.say("{N} has {n} {o}.", n=self.value)

    def change(self) -> None:
        """One event; an event that would leave 1..99 is replaced by one that stays inside."""
        room = LIMIT - self.value
        kind = self.rng.choice(("more", "fewer", "double", "bags"))
        count, size = self.rng.randint(2, 6), self.rng.randint(2, 6)
        if kind == "bags" and count * size <= room and len(self.steps) < 2:
            box = self.rng.choice(CONTAINERS)
            self.say("{P} buys {count} {box} of {size} {o}.", count=count, box=box, size=size)
            self.value = self.work(self.value, "+", self.work(count, "*", size))
        elif kind == "double" and self.value <= room:
            self.say("Then the number of {o} doubles.")
            self.value = self.work(self.value, "*", 2)
        elif (kind == "fewer" and self.value > 2) or room < 2:
            n = self.rng.randint(1, min(self.value - 1, 50))
            self.say(self.rng.choice(FEWER), n=n)
            self.value = self.work(self.value, "-", n)
        else:
            n = self.rng.randint(1, min(room, 50))
            self.say(self.rng.choice(MORE), n=n)
            self.value = self.work(self.value, "+", n)

    def close(self) -> None:
        divisors = [d for d in range(2, 10) if self.value % d == 0 and self.value // d > 1]
        kind = self.rng.choice(("now", "now", "share", "price", "compare", "together"))
        if len(self.steps) >= 3:
            kind = "now"
        n = self.rng.randint(2, 30)
        if kind == "share" and divisors:
            d = self.rng.choice(divisors)
            self.say("{P} shares them equally among {d} friends.", d=d)
            self.say("How many {o} does each friend get?")
            self.value = self.work(self.value, "/", d)
        elif kind == "price" and self.value * 2 <= LIMIT:
            price = self.rng.randint(2, min(9, LIMIT // self.value))
            self.say("Each one costs {c} dollars. How many dollars are they worth?", c=price)
            self.value = self.work(self.value, "*", price)
        elif kind == "compare" and n < self.value:
            self.say("{M} has {n} {o}. How many more {o} does {N} have than {M}?", n=n)
            self.value = self.work(self.value, "-", n)
        elif kind == "together" and n + self.value <= LIMIT:
            self.say("{M} has {n} {o}. How many {o} do they have together?", n=n)
            self.value = self.work(self.value, "+", n)
        else:
            self.say("How many {o} does {N} have now?")


def draw(rng: random.Random) -> Problem:
    """One word problem; the answer lists each step and ends in `answer: N`."""
    while True:
        story = _Story(rng)
        story.open()
        for _ in range(rng.choice((1, 2))):
            if len(story.steps) < 3:
                story.change()
        story.close()
        if 2 <= len(story.steps) <= 3:
            answer = "\n".join([*story.steps, f"answer: {story.value}"])
            return Problem("words", " ".join(story.sentences), answer, {"answer": story.value})


def grade(check: Mapping[str, Any], completion: str) -> bool:
    """True if the number after the last `answer:` is the expected one."""
    found = re.findall(r"answer:\s*(-?\d+)(?!\S)", completion)
    return bool(found) and int(found[-1]) == check["answer"]
