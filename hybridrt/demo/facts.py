"""The text that the demo checkpoint understands: facts, then questions about them.

A text is made of lines of eight characters. `amy=372` states a fact about a
name, once in a text. `day=051` and `now=640` may come again at any time; only
the latest one counts. `amy?372` is a question (up to and including the `?`) and
its answer:

    amy=372
    now=640
    tom=008
    day=051
    now=128
    amy?372
    now?128

The checkpoint was trained so that each kind of layer has a duty of its own: its
attention layer recalls the names up to J, its MLA layer those from K on, its
Mamba-1 states hold `day` and its Mamba-2 states `now`. So a wrong answer tells
which cache is wrong. One character is one token.
"""

from collections.abc import Collection
from dataclasses import dataclass
from random import Random

STOP = "\n"
LINE_TOKENS = len("amy=372\n")
SHORTEST_DISTANCE = len("\namy?")
MAX_DISTANCE = 400
CLOCKS = {"day": "mamba1", "now": "mamba2"}
KINDS = ("attention", "mla", "mamba1", "mamba2")

_NAMES = """
abe ada ali amy ana ann art asa ash ava bea ben bob bud cal cam cat cia dan dee
del don dot ela eli ely ema eva eve fay flo fox gil gus guy hal ham hew ian ida
ike ila ina ira ivy jan jay jed jem jim jin joe jon joy jud kai kay ken kim kip
kit lea lee leo les lia liv liz lou luz lyn mac mae max may meg mel mia moe nan
nat ned nia noa pam pat peg pia rae ray rex rob rod ron roy sal sam sid sky sue
tad tea ted tim tod tom una val van vic viv wes win zac zed zia zoe
"""
NAMES = tuple(_NAMES.split())


def kind_of(name: str) -> str:
    """The kind of layer that remembers the value of `name`."""
    return CLOCKS.get(name, "attention" if name < "k" else "mla")


@dataclass(frozen=True, slots=True)
class Recall:
    """A prompt that ends in a question, and the one right answer to it."""

    prompt: str
    answer: str
    """The value and `STOP`."""
    distance: int
    """Tokens from the end of the stated value to the end of the prompt."""

    @property
    def kind(self) -> str:
        """The kind of layer that is asked."""
        return kind_of(self.prompt[-4:-1])


class FactText:
    """Writes lines that agree with each other: every answer is what was last stated."""

    def __init__(self, rng: Random, avoid: Collection[str] = (), clock: str = "") -> None:
        """Starts an empty text.

        Args:
            rng: the source of every choice.
            avoid: names that random lines never name.
            clock: the one of `CLOCKS`, if any, to state and ask most often.
        """
        self.rng = rng
        self.avoid = avoid
        self.lines: list[str] = []
        self.values: dict[str, str] = {}
        self.unasked: list[str] = []
        self.unstated = [name for name in NAMES if name not in avoid]
        rng.shuffle(self.unstated)
        self.clocks = [clock for clock in CLOCKS if clock not in avoid]
        self.unasked_clocks: list[str] = []
        # Rates differ from text to text: few facts or many, clocks that run or stand.
        self.clock_rates = [
            0.4 ** rng.uniform(1, 4) * (1.0 if name == clock else 0.3) for name in self.clocks
        ]
        self.clock_share = 0.6 ** rng.uniform(1, 5)
        self.ask_rate = rng.uniform(0.25, 0.75)
        # Which clock has its next line when, in lines; only for a text that asks late.
        self.due: dict[str, int] = {}

    @property
    def text(self) -> str:
        """All lines so far."""
        return "".join(self.lines)

    def state(self, name: str) -> str:
        """Adds a fact with a random value, which is returned."""
        self.values[name] = f"{self.rng.randrange(1000):03d}"
        self.lines.append(f"{name}={self.values[name]}{STOP}")
        return self.values[name]

    def ask(self, name: str) -> None:
        """Adds a question and its answer."""
        self.lines.append(f"{name}?{self.values[name]}{STOP}")

    def add_lines(self, count: int) -> None:
        """Adds `count` random lines."""
        for _ in range(count):
            self._add_line()

    def ask_late(self) -> None:
        """From now on, asks for a clock up to `MAX_DISTANCE` tokens after it was stated."""
        self.clock_rates = [0.0 for _ in self.clocks]
        self.due = {clock: self.rng.randint(0, 8) for clock in self.clocks}

    def _add_due_line(self, clock: str) -> None:
        if clock in self.unasked_clocks and self.rng.random() < 0.75:
            self.unasked_clocks.remove(clock)
            self.ask(clock)
            wait = 8
        else:
            self._state_clock(clock)
            wait = MAX_DISTANCE // LINE_TOKENS + 2
        self.due[clock] = len(self.lines) + self.rng.randint(0, wait)

    def _state_clock(self, clock: str) -> None:
        self.state(clock)
        if clock not in self.unasked_clocks:
            self.unasked_clocks.append(clock)

    def _add_line(self) -> None:
        for clock, line in self.due.items():
            if len(self.lines) >= line:
                return self._add_due_line(clock)
        for clock, rate in zip(self.clocks, self.clock_rates, strict=True):
            if self.rng.random() < rate:
                return self._state_clock(clock)
        if self._askable() and (self.rng.random() < self.ask_rate or not self.unstated):
            self._ask_any()
        else:
            self.unasked.append(self.unstated.pop())
            self.state(self.unasked[-1])

    def _askable(self) -> list[str]:
        late = self.due.keys()
        return [name for name in self.values if name not in self.avoid and name not in late]

    def _ask_any(self) -> None:
        again = self.rng.random() < 0.1
        if self.unasked_clocks and not (again or self.due) and self.rng.random() < self.clock_share:
            self.ask(self.unasked_clocks.pop(self.rng.randrange(len(self.unasked_clocks))))
        elif self.unasked and not again:
            self.ask(self.unasked.pop(self.rng.randrange(len(self.unasked))))
        else:
            self.ask(self.rng.choice(self._askable()))


def training_text(rng: Random, tokens: int, clock: str = "", late: bool = False) -> str:
    """A random text of exactly `tokens` tokens, about `clock` if given, asking `late` if so."""
    writer = FactText(rng, clock=clock)
    if late:
        writer.ask_late()
    writer.add_lines(-(-tokens // LINE_TOKENS))
    return writer.text[:tokens]


def recall_prompt(rng: Random, distance: int | None = None, kind: str | None = None) -> Recall:
    """Makes a prompt that ends in a question about a fact `distance` tokens back.

    Args:
        rng: the source of every choice.
        distance: tokens from the end of the stated value to the end of the
            prompt; rounded down to what whole lines allow. If not given, any up
            to `MAX_DISTANCE`.
        kind: one of `KINDS`, the kind of layer to ask. If not given, any.

    What is asked for was not asked before, so that its value stands nowhere in
    the prompt but in the fact; older values of `day` and `now` may stand before it.
    """
    kind = rng.choice(KINDS) if kind is None else kind
    if kind not in KINDS:
        raise ValueError(f"kind={kind!r}: one of {', '.join(KINDS)}")
    if distance is None:
        distance = rng.randint(SHORTEST_DISTANCE, MAX_DISTANCE)
    if distance < SHORTEST_DISTANCE:
        raise ValueError(f"distance={distance}: the question alone takes {SHORTEST_DISTANCE}")
    between = (distance - SHORTEST_DISTANCE) // LINE_TOKENS
    asked = rng.choice([name for name in (*NAMES, *CLOCKS) if kind_of(name) == kind])
    writer = FactText(rng, avoid=(asked,))
    writer.add_lines(rng.randint(0, 12))
    if asked in CLOCKS and rng.random() < 0.5:
        writer.state(asked)
        writer.add_lines(rng.randint(0, 12))
    answer = writer.state(asked)
    writer.add_lines(between)
    distance = between * LINE_TOKENS + SHORTEST_DISTANCE
    return Recall(f"{writer.text}{asked}?", answer + STOP, distance)
