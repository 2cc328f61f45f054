import sys
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from hybridrt.engine.detokenizer import Detokenizer
from hybridrt.engine.tokenizer import Tokenizer
from hybridrt.request import SamplingParams

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())


def byte_level() -> Tokenizer:
    """Every byte a token, a few longer ones that cut characters anywhere, and special tokens."""
    spelled = Backend(models.BPE())
    spelled.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words = [" the", "ab", "abab", "é", "🙂", "\n\n"]
    tokens = [spelled.pre_tokenizer.pre_tokenize_str(word)[0][0] for word in words]
    emoji = tokens[4]
    tokens += [emoji[:2], emoji[2:], emoji[1:] + tokens[1], tokens[3] + emoji[:1]]
    vocab = {token: id for id, token in enumerate(dict.fromkeys([*ALPHABET, *tokens]))}
    backend = Backend(models.BPE(vocab=vocab, merges=[]))
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([AddedToken("<añadido 你>")])
    backend.add_special_tokens(["<s>", "<|é|>"])
    return Tokenizer(backend)


def byte_fallback() -> Tokenizer:
    pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces += ["▁", "▁the", "▁ab", "ab", "é", "▁▁", "\n", "<0xZZ>"]
    return pieces_tokenizer(
        pieces,
        decoders.Sequence(
            [
                decoders.Replace("▁", " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(" ", 1, 0),
            ]
        ),
    )


def pieces_tokenizer(pieces: Sequence[str], decoder: decoders.Decoder | None) -> Tokenizer:
    backend = Backend(models.WordLevel({piece: n for n, piece in enumerate(pieces)}, "x"))
    if decoder is not None:
        backend.decoder = decoder
    backend.add_special_tokens(["<s>"])
    return Tokenizer(backend)


TOKENIZERS = {
    "byte_level": byte_level(),
    "byte_fallback": byte_fallback(),
    "metaspace": pieces_tokenizer(["▁", "▁the", "ab", "▁a", "é"], decoders.Metaspace()),
    "wordpiece": pieces_tokenizer(
        ["the", "##s", "ab", "!", "##é", "n't", "'"], decoders.WordPiece()
    ),
    "bpe_suffix": pieces_tokenizer(["the</w>", "a", "b</w>", "é"], decoders.BPEDecoder()),
    "no_decoder": pieces_tokenizer(["the", "ab", "é"], None),
}
BYTES = TOKENIZERS["byte_level"]
kinds = st.sampled_from(sorted(TOKENIZERS))


def token_lists(tokenizer: Tokenizer, any_bytes: bool) -> st.SearchStrategy[list[int]]:
    """Any tokens, longer ones and runs of whole characters more often than by chance."""
    size = tokenizer.vocab_size
    long = st.integers(min(256, size - 1), size + 2).map(lambda id: [id])
    some = st.integers(0, size - 1).map(lambda id: [id])
    if tokenizer.has_byte_fallback:
        characters = st.sampled_from("a \né你🙂").map(lambda c: list(c.encode()))
    elif tokenizer.is_byte_level:
        ids = {tokenizer.token_bytes(id): id for id in range(len(ALPHABET))}
        characters = st.sampled_from("ab \né你🙂").map(
            lambda c: [ids[bytes([byte])] for byte in c.encode()]
        )
    else:
        characters = some
    some = some if any_bytes or not tokenizer.has_byte_fallback else long
    lists = st.lists(st.one_of(long, some, characters, characters), max_size=30)
    return lists.map(lambda parts: [id for part in parts for id in part])


@st.composite
def outputs(
    draw: st.DrawFn, any_bytes: bool = True
) -> tuple[Tokenizer, list[int], list[int], bool]:
    tokenizer = TOKENIZERS[draw(kinds)]
    lists = token_lists(tokenizer, any_bytes)
    return tokenizer, draw(lists.map(lambda ids: ids[:5])), draw(lists), draw(st.booleans())


def chunks(ids: Sequence[int], sizes: Sequence[int]) -> list[Sequence[int]]:
    cuts, start = [], 0
    for size in [*sizes, *[1] * len(ids)]:
        if start < len(ids):
            cuts.append(ids[start : start + size])
            start += size
    return cuts


def reference_text(tokenizer: Tokenizer, prompt: list[int], ids: list[int], skip: bool) -> str:
    """What decoding it all at once gives behind the prompt."""
    if tokenizer.is_byte_level:
        return tokenizer.decode(ids, skip)
    # A run of byte tokens in the prompt does not decide over bytes in the output.
    before = [id for id in prompt if tokenizer.is_visible(id, skip)]
    before = [id for id in before if tokenizer.fallback_byte(id) is None][-1:]
    return tokenizer.decode(before + ids, skip)[len(tokenizer.decode(before, skip)) :]


def valid_runs(tokenizer: Tokenizer, ids: list[int], skip: bool) -> bool:
    """Whether no byte run is both longer than the detokenizer waits for and not UTF-8."""
    run = b""
    for id in [id for id in ids if tokenizer.is_visible(id, skip)] + [-1]:
        byte = None if id == -1 else tokenizer.fallback_byte(id)
        if byte is not None:
            run += bytes([byte])
            continue
        if len(run) > 32 and "\ufffd" in run.decode(errors="replace"):
            return False
        run = b""
    return True


@given(outputs(), st.lists(st.integers(1, 4), max_size=5))
def test_pieces_together_are_the_text_decoded_at_once(
    output: tuple[Tokenizer, list[int], list[int], bool], sizes: list[int]
) -> None:
    tokenizer, prompt, ids, skip = output
    if not valid_runs(tokenizer, ids, skip):
        return
    detokenizer = Detokenizer(tokenizer, prompt, SamplingParams(skip_special_tokens=skip))
    shown = []
    for chunk in chunks(ids, sizes):
        assert detokenizer.append(chunk) is None
        shown.append(detokenizer.take_new_text())
        assert detokenizer.streamable_text == "".join(shown) == detokenizer.text
    detokenizer.finish()
    shown.append(detokenizer.take_new_text())
    assert "".join(shown) == detokenizer.text == reference_text(tokenizer, prompt, ids, skip)


@st.composite
def stops_in(draw: st.DrawFn, text: str) -> list[str]:
    """Stop strings of which most occur in the text."""
    stops = draw(st.lists(st.text("ab \né🙂<", min_size=1, max_size=4), max_size=2))
    for _ in range(draw(st.integers(0, 2)) if text else 0):
        start = draw(st.integers(0, len(text) - 1))
        stops.append(text[start : start + draw(st.integers(1, 8))])
    return [stop for stop in stops if "\ufffd" not in stop]


def first_stop(text: str, stops: Sequence[str]) -> tuple[int, str] | None:
    """The stop string that is complete first, the longest of those, and where it starts."""
    ends = [(text.find(s) + len(s), text.find(s), s) for s in stops if s in text]
    return min(ends)[1:] if ends else None


# A bad byte changes the characters of its run, in which a stop may have been found: none here.
@given(outputs(any_bytes=False), st.lists(st.integers(1, 4), max_size=5), st.data())
def test_stop_strings_are_found_where_they_are_in_the_whole_text(
    output: tuple[Tokenizer, list[int], list[int], bool], sizes: list[int], data: st.DataObject
) -> None:
    tokenizer, prompt, ids, skip = output
    text = reference_text(tokenizer, prompt, ids, skip)
    stops = data.draw(stops_in(text))
    params = SamplingParams(skip_special_tokens=skip, stop=tuple(stops))
    detokenizer = Detokenizer(tokenizer, prompt, params)
    shown, found = "", None
    for chunk in chunks(ids, sizes):
        found = detokenizer.append(chunk)
        shown += detokenizer.take_new_text()
        assert detokenizer.streamable_text == shown
        if found is not None:
            break
    detokenizer.finish()
    shown += detokenizer.take_new_text()
    expected = first_stop(text, stops)
    assert (found, shown) == ((expected[1], text[: expected[0]]) if expected else (None, text))
    assert detokenizer.text == detokenizer.streamable_text == shown


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    ids = {tokenizer.token_bytes(id): id for id in range(len(ALPHABET))}
    return [ids[bytes([byte])] for byte in text.encode()]


def test_a_character_is_shown_when_its_last_byte_has_come() -> None:
    detokenizer = Detokenizer(BYTES, [], SamplingParams())
    shown = []
    for id in ids_of(BYTES, "a🙂é"):
        detokenizer.append([id])
        shown.append(detokenizer.take_new_text())
    assert shown == ["a", "", "", "", "🙂", "", "é"]


def test_an_unfinished_character_is_shown_at_the_end() -> None:
    detokenizer = Detokenizer(BYTES, [], SamplingParams())
    detokenizer.append(ids_of(BYTES, "a🙂")[:-1])
    assert detokenizer.text == "a"
    detokenizer.finish()
    assert detokenizer.text == detokenizer.streamable_text == "a\ufffd"


def test_what_could_begin_a_stop_string_is_held_back() -> None:
    detokenizer = Detokenizer(
        BYTES,
        [],
        SamplingParams(
            stop=(
                "<end>",
                "END",
            )
        ),
    )
    shown = []
    for id in ids_of(BYTES, "a<en<eE<end"):
        assert detokenizer.append([id]) is None
        shown.append(detokenizer.take_new_text())
    assert shown == ["a", "", "", "", "<en", "", "<e", "E", "", "", ""]
    assert detokenizer.text == "a<en<eE<end" and detokenizer.streamable_text == "a<en<eE"
    assert detokenizer.append(ids_of(BYTES, ">more")) == "<end>"
    assert detokenizer.text == detokenizer.streamable_text == "a<en<eE"


@pytest.mark.parametrize(
    ("stops", "found", "text"),
    [
        (("bcd", "c"), "c", "ab"),
        (("d", "bcd"), "bcd", "a"),
        (("bcd", "d"), "bcd", "a"),
        (("e", "d"), "d", "abc"),
        (("abcdef", "f"), "abcdef", ""),
        (("abcdg", "bcde"), "bcde", "a"),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 6])
def test_the_stop_string_that_is_complete_first_counts_however_text_comes(
    stops: tuple[str, ...], found: str, text: str, size: int
) -> None:
    detokenizer = Detokenizer(BYTES, [], SamplingParams(stop=stops))
    parts = chunks(ids_of(BYTES, "abcdef"), [size] * 6)
    assert next(stop for part in parts if (stop := detokenizer.append(part))) == found
    assert detokenizer.text == detokenizer.streamable_text == text


def test_the_end_shows_what_was_held_back() -> None:
    detokenizer = Detokenizer(BYTES, [], SamplingParams(stop=("<end>",)))
    detokenizer.append(ids_of(BYTES, "a<en"))
    detokenizer.finish()
    assert detokenizer.streamable_text == "a<en"


def test_stop_strings_wait_for_min_tokens_but_may_begin_before() -> None:
    detokenizer = Detokenizer(BYTES, [], SamplingParams(stop=("ab",)))
    assert detokenizer.append(ids_of(BYTES, "ab"), check_stop=False) is None
    assert detokenizer.streamable_text == "ab"
    assert detokenizer.append(ids_of(BYTES, " a"), check_stop=False) is None
    assert detokenizer.streamable_text == "ab "
    assert detokenizer.append(ids_of(BYTES, "b")) == "ab"
    assert detokenizer.text == "ab "


def test_a_stop_string_of_byte_tokens_is_found_at_its_last_byte() -> None:
    tokenizer = TOKENIZERS["byte_fallback"]
    detokenizer = Detokenizer(tokenizer, [], SamplingParams(stop=("\n",)))
    the = tokenizer.encode("▁the", add_special_tokens=False)
    assert detokenizer.append([*the, 0x0A], check_stop=False) is None
    assert detokenizer.append(the) is None
    assert detokenizer.append([0x0A]) == "\n"
    assert detokenizer.text == "the\n the"


def test_a_long_run_of_byte_tokens_is_shown_in_parts() -> None:
    detokenizer = Detokenizer(TOKENIZERS["byte_fallback"], [], SamplingParams())
    for n, byte in enumerate("🙂".encode() * 100):
        detokenizer.append([byte])
        assert len(detokenizer.text) * 4 >= n - 32
    detokenizer.finish()
    assert detokenizer.text == "🙂" * 100


def test_text_follows_on_the_prompt() -> None:
    tokenizer = TOKENIZERS["byte_fallback"]
    the = tokenizer.encode("▁the", add_special_tokens=False)
    for prompt, text in [
        ([], "the"),
        (the, " the"),
        ([*the, 0x0A, tokenizer.vocab_size - 1], " the"),
    ]:
        detokenizer = Detokenizer(tokenizer, prompt, SamplingParams())
        detokenizer.append(the)
        assert detokenizer.text == text


def test_without_a_tokenizer_there_is_no_text() -> None:
    detokenizer = Detokenizer(None, [1, 2], SamplingParams())
    assert detokenizer.append([1, 2, 3]) is None
    detokenizer.finish()
    assert detokenizer.text == ""
    with pytest.raises(ValueError, match=r"stop=.*no tokenizer"):
        Detokenizer(None, [1], SamplingParams(stop=("x",)))


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
def test_work_per_token_does_not_grow(kind: str) -> None:
    """Counts the lines of Python that each half of a long output runs."""
    tokenizer = TOKENIZERS[kind]
    detokenizer = Detokenizer(tokenizer, [], SamplingParams(stop=("never to be found",)))
    lines = 0

    def count(frame: object, event: str, argument: object) -> object:
        nonlocal lines
        lines += event == "line"
        return count

    counts = []
    ids = [id % 256 for id in range(2048)]
    previous = sys.gettrace()
    for half in (ids, ids):
        lines = 0
        sys.settrace(count)  # type: ignore[arg-type]
        for id in half:
            detokenizer.append([id])
            detokenizer.take_new_text()
        sys.settrace(previous)
        counts.append(lines)
    assert counts[1] <= counts[0] * 1.05
    assert len(detokenizer._stop._tail) < len("never to be found")
