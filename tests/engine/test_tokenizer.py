import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend

from hybridrt.engine.tokenizer import Tokenizer


def byte_level() -> Backend:
    """GPT-2's kind: all bytes, a few merges, two special tokens and one that is not."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<s>", "</s>"],
        show_progress=False,
    )
    backend.train_from_iterator(["the cat sat on the mat, le chat était là 你好 🙂"] * 3, trainer)
    backend.add_tokens([AddedToken("<añadido 你>"), AddedToken("é!")])
    return backend


def llama_like() -> Backend:
    """Sentencepiece's kind: a mark for each space, and byte tokens for rare characters."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "t", "h", "e", "c", "a", "é", "▁t", "▁c", "▁th", "▁the", "▁ca", "▁cat", "▁caé"]
    merges = [("▁", "t"), ("▁", "c"), ("▁t", "h"), ("▁th", "e"), ("▁c", "a"), ("▁ca", "t")]
    backend = Backend(
        models.BPE(
            vocab={piece: id for id, piece in enumerate(pieces)},
            merges=merges,
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    return backend


def word_pieces() -> Backend:
    pieces = ["[UNK]", "the", "cat", "##s", "!", ",", "é"]
    backend = Backend(models.WordPiece({piece: n for n, piece in enumerate(pieces)}))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    return backend


def save(folder: Path, backend: Backend, config: dict[str, Any] | None = None) -> Tokenizer:
    backend.save(str(folder / "tokenizer.json"))
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer.from_directory(folder)
    assert tokenizer is not None
    return tokenizer


def test_a_model_may_have_no_tokenizer(tmp_path: Path) -> None:
    assert Tokenizer.from_directory(tmp_path) is None


@pytest.mark.parametrize("content", ["", "{", "{}", '{"version": "1.0"}', "\ud83d"])
def test_a_malformed_tokenizer_is_an_error_that_names_the_file(
    content: str, tmp_path: Path
) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content.encode(errors="surrogatepass"))
    with pytest.raises(ValueError, match=r"tokenizer\.json: "):
        Tokenizer.from_directory(tmp_path)


def test_a_malformed_tokenizer_config_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    byte_level().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text("[")
    with pytest.raises(ValueError, match=r"tokenizer_config\.json: not valid JSON"):
        Tokenizer.from_directory(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "the cat", "the  cat ", "là\n你好 🙂", "<s>the</s>", "<añadido 你>"]
)
@pytest.mark.parametrize("backend", [byte_level(), llama_like()], ids=["byte_level", "llama_like"])
def test_text_survives_the_way_there_and_back(backend: Backend, text: str) -> None:
    tokenizer = Tokenizer(backend)
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_special_tokens_are_added_and_left_out_when_asked() -> None:
    tokenizer = Tokenizer(llama_like())
    assert tokenizer.encode("the")[0] == 1
    assert tokenizer.encode("the", add_special_tokens=False)[0] != 1
    assert tokenizer.decode(tokenizer.encode("the")) == "the"
    assert tokenizer.decode(tokenizer.encode("the"), skip_special_tokens=False) == "<s> the"


@pytest.mark.parametrize(
    "adds", [{}, {"add_bos_token": False}, {"add_bos_token": True}, {"add_eos_token": True}]
)
@pytest.mark.parametrize("kind", [byte_level, llama_like])
def test_ids_are_those_of_transformers(kind: Any, adds: dict[str, bool], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        **adds,
    }
    tokenizer = save(tmp_path, kind(), config)
    oracle = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in ["the cat", " là 你好 🙂 ", "<s>the"]:
        for special in (True, False):
            ids = tokenizer.encode(text, add_special_tokens=special)
            assert ids == oracle.encode(text, add_special_tokens=special)
            for skip in (True, False):
                assert tokenizer.decode(ids, skip) == oracle.decode(ids, skip_special_tokens=skip)
    assert tokenizer.eos_token_id == oracle.eos_token_id
    assert tokenizer.vocab_size == len(oracle)


def test_truncation_and_padding_of_the_file_are_not_applied(tmp_path: Path) -> None:
    backend = byte_level()
    backend.enable_truncation(2)
    backend.enable_padding(length=99)
    tokenizer = save(tmp_path, backend)
    ids = tokenizer.encode("the cat sat on the mat")
    assert tokenizer.decode(ids) == "the cat sat on the mat" and len(ids) < 99


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(ValueError, match="not valid Unicode"):
        Tokenizer(byte_level()).encode("a\ud83d")


@pytest.mark.parametrize("eos", ["</s>", {"content": "</s>", "lstrip": False}])
def test_roles_are_read_from_the_config(eos: Any, tmp_path: Path) -> None:
    config = {"eos_token": eos, "bos_token": None, "pad_token": "<nowhere>", "add_bos_token": True}
    tokenizer = save(tmp_path, byte_level(), config)
    assert tokenizer.eos_token_id == 1 and tokenizer.bos_token_id is None
    assert tokenizer.special_tokens == {"eos_token": "</s>", "pad_token": "<nowhere>"}
    assert Tokenizer(byte_level()).eos_token_id is None


def test_a_tokens_text_keeps_its_leading_space() -> None:
    llama, bert = Tokenizer(llama_like()), Tokenizer(word_pieces())
    ids = llama.encode("the cat🙂")
    assert [llama.token_text(id) for id in ids] == ["<s>", " the", " cat", *["\ufffd"] * 4]
    assert [bert.token_text(id) for id in bert.encode("the cats!")] == [" the", " cat", "s", "!"]
    plain = Tokenizer(byte_level())
    ids = plain.encode("the 你<añadido 你>", add_special_tokens=False)
    assert "".join(plain.token_text(id) for id in ids).replace("\ufffd", "") in (
        "the 你<añadido 你>",
        "the <añadido 你>",
    )
    assert plain.token_text(10**6) == ""


def test_bytes_of_tokens_are_those_of_the_library() -> None:
    backend = byte_level()
    tokenizer = Tokenizer(backend)
    for id in range(tokenizer.vocab_size):
        for other in (id, 5, 200):
            joined = tokenizer.token_bytes(id) + tokenizer.token_bytes(other)
            text = backend.decode([id, other], skip_special_tokens=False)
            assert joined.decode(errors="replace") == text
