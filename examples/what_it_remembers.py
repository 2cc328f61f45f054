"""What a hybrid remembers, where, and for how long.

The demo checkpoint is told facts and asked for them. Where does it hold them? The memory of one
layer after the other is erased, then of two at a time; each layer's memory is put into a session
with other facts; and the question is asked further and further behind the fact.

Usage: python examples/what_it_remembers.py
"""

from contextlib import ExitStack
from itertools import combinations
from random import Random

from rich.console import Console
from rich.table import Table

from hybridrt import LLM, SamplingParams
from hybridrt.demo.facts import KINDS, STOP, FactText, recall_prompt
from hybridrt.session import Session, SessionLayer

VALUES = {"amy": "372", "tom": "008", "day": "051", "now": "640"}
OTHERS = {"amy": "915", "tom": "284", "day": "733", "now": "826"}
ANSWER = SamplingParams(temperature=0, max_tokens=4, stop=(STOP,))
DISTANCES = (50, 200, 400, 600, 800)
PROMPTS = 5  # a kind of layer and distance

out = Console(width=100, highlight=False)
llm = LLM("demo", cache_memory="64MiB")


def told(values: dict[str, str]) -> Session:
    """A session that has been told facts, then others, and is asked nothing so far."""
    others = FactText(Random(0), avoid=VALUES)
    others.add_lines(12)
    facts = "".join(f"{name}={value}{STOP}" for name, value in values.items())
    return llm.session(facts + others.text)


def ask(session: Session, name: str) -> str:
    """What the model says. It is said to a fork, so that the session stays as it was."""
    with session.fork() as asked:
        asked.append(f"{name}?")
        return asked.generate(ANSWER).outputs[0].text


def ask_without(session: Session, *layers: SessionLayer) -> dict[str, str]:
    """The answers when these layers have forgotten what they held of the text."""
    with ExitStack() as undone:  # bit for bit, when the answers are known
        for layer in layers:
            undone.enter_context(layer.ablate())
        return {name: ask(session, name) for name in VALUES}


def erase(session: Session, count: int) -> Table:
    """So many layers forget at a time. Of two or more, what breaks and was whole without one."""
    table = Table("erased", *(f"{name}?" for name in VALUES))
    for layers in combinations(session.layers, count):
        answers = ask_without(session, *layers)
        fewer = [ask_without(session, *some) for some in combinations(layers, count - 1)]
        new = {
            n for n in VALUES if answers[n] != VALUES[n] and all(a[n] == VALUES[n] for a in fewer)
        }
        if count == 1 or new:
            cells = [f"[bold red]{a}[/]" if n in new else a for n, a in answers.items()]
            table.add_row(" + ".join(f"{one.index} {one.mixer}" for one in layers), *cells)
    return table


def transplant(session: Session) -> Table:
    """The answers of a session with other facts, while one layer holds what it does in this."""
    table = Table("put in", *(f"{name}?" for name in VALUES))
    with told(OTHERS) as other:
        for mine, theirs in zip(session.layers, other.layers, strict=True):
            with theirs.write(mine.read()):
                answers = {name: ask(other, name) for name in VALUES}
            cells = [f"[bold green]{a}[/]" if a == VALUES[n] else a for n, a in answers.items()]
            table.add_row(f"{mine.index} {mine.mixer}", *cells)
    return table


def ask_further_back() -> Table:
    """Right answers by how many tokens ago the fact was stated."""
    table = Table("trained to hold it", *(f"{d} tokens" for d in DISTANCES))
    for kind in KINDS:
        cells: list[str] = []
        for distance in DISTANCES:
            rng = Random(distance)
            recalls = [recall_prompt(rng, distance, kind) for _ in range(PROMPTS)]
            outputs = llm.generate([recall.prompt for recall in recalls], ANSWER)
            texts = [output.outputs[0].text + STOP for output in outputs]
            right = sum(t == recall.answer for t, recall in zip(texts, recalls, strict=True))
            cells.append(f"{right} of {PROMPTS}")
        table.add_row(kind, *cells)
    return table


session = told(VALUES)
out.print(f"Told {VALUES}, then {session.num_tokens - 32} tokens of other facts.\n")
out.print("One layer forgets. In red is what the model makes up:")
out.print(erase(session, 1))
out.print(
    "amy needs attention's rows, tom those of MLA, now one Mamba-2 state, and no layer alone is\n"
    "needed for day. So two forget. These break what one did not:"
)
out.print(erase(session, 2))
out.print("day is held more than once, and is lost only with all of it.\n")

out.print(f"A session is told {OTHERS},")
out.print("and one of its layers gets the memory of the first. In green are the first one's facts:")
out.print(transplant(session))
out.print(
    "Attention's rows decide all answers where they are there, also those that broke when another\n"
    "layer forgot. What is needed for an answer is not always what decides it: try both.\n"
)

out.print("Right answers, by how many tokens ago the fact was stated:")
out.print(ask_further_back())
out.print(
    "It was trained on distances of up to 400. Of a longer text attention and MLA have every row,\n"
    "but were never shown positions so far apart; a state has to keep the fact among what comes."
)
