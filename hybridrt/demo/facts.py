"""The text that the demo checkpoint understands: facts, then questions about them.

A text is made of lines of eight characters. `amy=372` states a fact about a
name; `cat=amy` says that cat has what amy has. A name is stated once in a text.
`now=640` says what `now` is and may come again at any time; only the latest one
counts. `amy?372` is a question (up to and including the `?`) and its answer:

    amy=372
    now=640
    bob=051
    cat=amy
    now=128
    cat?372
    now?128

Recalling a name needs what attention keeps of every token, and an alias needs
it twice, one layer after the other; `now` is a value that is overwritten, which
is what a recurrent state is for. One character is one token, so lengths in
characters are lengths in tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

CLOCK = "now"
STOP = "\n"
LINE_TOKENS = len("amy=372\n")
MAX_DISTANCE = 400

_NAMES = """
abe ada ali amy ana ann art asa ash ava bea ben bob bud cal cam cat cia dan dee
del don dot ela eli ely ema eva eve fay flo fox gil gus guy hal ham hew ian ida
ike ila ina ira ivy jan jay jed jem jim jin joe jon joy jud kai kay ken kim kip
kit lea lee leo les lia liv liz lou luz lyn mac mae max may meg mel mia moe nan
nat ned nia noa pam pat peg pia rae ray rex rob rod ron roy sal sam sid sky sue
tad tea ted tim tod tom una val van vic viv wes win zac zed zia zoe
"""
NAMES = tuple(_NAMES.split())
KINDS = ("fact", "alias", "now")


@dataclass(frozen=True, slots=True)
class Recall:
    """A prompt that ends in a question, and the one right answer to it."""

    prompt: str
    answer: str
    """The value and `STOP`."""
    distance: int
    """Tokens from the end of the oldest fact that is needed to the end of the prompt."""
    kind: str
    """`fact`, `alias` or `now`."""


class FactText:
    """Writes lines that agree with each other: every answer is what was last stated."""

    def __init__(self, rng: Random, avoid: Sequence[str] = ()) -> None:
        """Starts an empty text in which random lines never name any of `avoid`."""
        self.rng = rng
        self.avoid = avoid
        self.lines: list[str] = []
        self.values: dict[str, str] = {}
        self.originals: list[str] = []
        self.unasked: list[str] = []
        self.unstated = [name for name in NAMES if name not in avoid]
        rng.shuffle(self.unstated)
        # Rates differ from text to text: few facts or many, a clock that runs or stands.
        self.clock_rate = 0.0 if CLOCK in avoid else 0.2 ** rng.uniform(1, 3.5)
        self.ask_rate = rng.uniform(0.25, 0.75)
        self.alias_rate = rng.choice((0.1, 0.3, 0.5))

    @property
    def text(self) -> str:
        """All lines so far."""
        return "".join(self.lines)

    def state(self, name: str) -> str:
        """Adds a fact with a random value, which is returned."""
        self.values[name] = f"{self.rng.randrange(1000):03d}"
        self.lines.append(f"{name}={self.values[name]}{STOP}")
        return self.values[name]

    def alias(self, name: str, original: str) -> None:
        """Adds the line that gives `name` the value of `original`."""
        self.values[name] = self.values[original]
        self.lines.append(f"{name}={original}{STOP}")

    def ask(self, name: str) -> None:
        """Adds a question and its answer."""
        self.lines.append(f"{name}?{self.values[name]}{STOP}")

    def add_line(self) -> None:
        """Adds a random line: the clock, a question that can be answered, or a new fact."""
        if self.rng.random() < self.clock_rate:
            self.state(CLOCK)
        elif self.unstated and not (self._can_ask() and self.rng.random() < self.ask_rate):
            self._state_new()
        else:
            self._ask_any()

    def add_lines(self, count: int) -> None:
        """Adds `count` random lines."""
        for _ in range(count):
            self.add_line()

    def _state_new(self) -> None:
        name = self.unstated.pop()
        self.unasked.append(name)
        if self.originals and self.rng.random() < self.alias_rate:
            self.alias(name, self.rng.choice(self.originals))
        else:
            self.state(name)
            self.originals.append(name)

    def _can_ask(self) -> bool:
        return bool(self.values.keys() - set(self.avoid))

    def _ask_any(self) -> None:
        if CLOCK in self.values and CLOCK not in self.avoid and self.rng.random() < 0.2:
            self.ask(CLOCK)
        elif self.unasked and self.rng.random() < 0.9:
            self.ask(self.unasked.pop(self.rng.randrange(len(self.unasked))))
        else:
            self.ask(self.rng.choice([name for name in self.values if name not in self.avoid]))


def training_text(rng: Random, tokens: int) -> str:
    """A random text of exactly `tokens` tokens; its last line may be cut."""
    writer = FactText(rng)
    writer.add_lines(-(-tokens // LINE_TOKENS))
    return writer.text[:tokens]


def recall_prompt(rng: Random, distance: int | None = None, kind: str | None = None) -> Recall:
    """Makes a prompt that ends in a question, with the fact about `distance` tokens back.

    Args:
        rng: the source of every choice.
        distance: tokens from the end of the oldest fact that is needed to the
            end of the prompt; rounded down to what whole lines allow. If not
            given, any up to `MAX_DISTANCE`.
        kind: one of `KINDS`; if not given, half are `fact`.

    What is asked for was not asked before, so that its value stands nowhere in
    the prompt but in the fact; older values of `now` may stand before it.
    """
    kind = rng.choice(("fact", *KINDS)) if kind is None else kind
    if kind not in KINDS:
        raise ValueError(f"kind={kind!r}: one of {', '.join(KINDS)}")
    shortest = len("\namy?") + (LINE_TOKENS if kind == "alias" else 0)
    if distance is None:
        distance = rng.randint(shortest, MAX_DISTANCE)
    if distance < shortest:
        raise ValueError(f"distance={distance}: {shortest} is the least for kind={kind!r}")
    between = (distance - shortest) // LINE_TOKENS
    name, other = (CLOCK, CLOCK) if kind == "now" else rng.sample(NAMES, 2)
    writer = FactText(rng, avoid=(name, other))
    writer.add_lines(rng.randint(0, 12))
    if kind == "now" and rng.random() < 0.5:
        writer.state(CLOCK)
        writer.add_lines(rng.randint(0, 12))
    answer = writer.state(other if kind == "alias" else name)
    if kind == "alias":
        early = rng.randint(0, between)
        writer.add_lines(early)
        writer.alias(name, other)
        writer.add_lines(between - early)
    else:
        writer.add_lines(between)
    distance = shortest + between * LINE_TOKENS
    return Recall(f"{writer.text}{name}?", answer + STOP, distance, kind)
