"""Questions to the demo checkpoint of which many are about one text, so that they share it."""

from random import Random

from hybridrt.demo.facts import LINE_TOKENS, MAX_DISTANCE, STOP, FactText, Recall, kind_of

LINES = (30, MAX_DISTANCE // LINE_TOKENS)
"""The fewest and the most of a text; no fact of it is too far away to be asked for."""


def questions(rng: Random, num_texts: int, each: int) -> list[Recall]:
    """So many texts with `each` questions behind, in any order.

    What is asked for was stated once, or is a clock, and was not asked before in the text.
    """
    found: list[Recall] = []
    for _ in range(num_texts):
        writer = FactText(rng)
        while len(_open_questions(writer)) < min(each, 8) or len(writer.lines) < LINES[0]:
            if len(writer.lines) == LINES[1]:
                writer = FactText(rng)
            writer.add_lines(1)
        found += [_question(writer, _name(rng, _open_questions(writer))) for _ in range(each)]
    rng.shuffle(found)
    return found


def _open_questions(writer: FactText) -> list[str]:
    return [*writer.unasked, *writer.unasked_clocks]


def _name(rng: Random, names: list[str]) -> str:
    """One for any kind of layer that is there, so that each kind is asked as often."""
    kind = rng.choice(sorted({kind_of(name) for name in names}))
    return rng.choice([name for name in names if kind_of(name) == kind])


def _question(writer: FactText, name: str) -> Recall:
    answer = writer.values[name] + STOP
    stated = writer.text.rindex(f"{name}={answer}") + len(f"{name}={answer}") - len(STOP)
    prompt = f"{writer.text}{name}?"
    return Recall(prompt, answer, len(prompt) - stated)
