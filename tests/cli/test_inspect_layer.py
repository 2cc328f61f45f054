"""`hybridrt inspect --layer`."""

import pytest

from hybridrt import LLM

from .conftest import DEMO

IDS = [3 + i * 7 % 50 for i in range(21)]
GIVEN = ("--token-ids", ",".join(map(str, IDS)), "--page-size", "8")


def test_prints_every_page_and_the_values_that_read_gives(run):
    llm = LLM(str(DEMO), page_size=8)
    with llm.session(IDS) as session:
        for layer in session.layers:
            tokens = () if layer.kind == "state" else ("--tokens", "6:9")
            data = run("inspect", DEMO, *GIVEN, "--layer", str(layer.index), *tokens, "--json").json
            given = layer.read()
            assert (data["index"], data["name"]) == (layer.index, layer.name)
            assert (data["mixer"], data["num_tokens"]) == (layer.mixer, len(IDS))
            assert data["bytes"] == layer.bytes
            assert data["checkpoint_positions"] == list(layer.checkpoint_positions)
            assert [page["tokens"] for page in data["pages"]] == [
                [page.tokens.start, page.tokens.stop] for page in layer.pages
            ]
            assert [page["key"] for page in data["pages"]] == [page.key for page in layer.pages]
            for tensor in data["tensors"]:
                right = given[tensor["name"]]
                assert tensor["shape"] == list(right.shape)
                assert tuple(tensor["axes"]) == layer.axes[tensor["name"]]
                square = sum(head["norm"] ** 2 for head in tensor["heads"])
                assert square == pytest.approx(float(right.double().square().sum()))
            if layer.kind != "state":
                assert [token["position"] for token in data["tokens"]] == [6, 7, 8]
                assert [token["token_id"] for token in data["tokens"]] == IDS[6:9]
                for name, tensor in given.items():
                    values = [token[name] for token in data["tokens"]]
                    assert values == tensor[6:9].tolist()


def test_shows_a_table_of_pages_tensors_and_tokens(run):
    data = run("plan", DEMO, "--json").json
    kinds = [layer["kind"] for layer in data["layers"]]
    out = run("inspect", DEMO, *GIVEN, "--layer", str(kinds.index("full")), "--tokens", "19:").out
    for text in ("Pages", "held by", "16:21", "Tensors", "kv_heads", "The first 4 numbers"):
        assert text in out
    out = run("inspect", DEMO, *GIVEN, "--layer", str(kinds.index("state"))).out
    assert "Checkpoints of its states behind" in out and "ssm_state" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--layer", "0"), "--layer=0 is of a prompt"),
        ((*GIVEN, "--tokens", "0:2"), "--tokens='0:2' is of one layer"),
        ((*GIVEN, "--layer", "99"), "--layer=99 should be from 0 to"),
        ((*GIVEN, "--layer", "0", "--tokens", "0:2"), "holds one state of all tokens"),
        ((*GIVEN, "--layer", "FULL", "--tokens", "5"), "should be two positions, such as 3:10"),
        ((*GIVEN, "--layer", "FULL", "--tokens", "5:40"), "holds 0:21; should be some of these"),
        ((*GIVEN, "--layer", "FULL", "--tokens", "5:5"), "holds 0:21; should be some of these"),
    ],
)
def test_what_can_not_be_shown_is_refused_by_name(run, arguments, message):
    kinds = [layer["kind"] for layer in run("plan", DEMO, "--json").json["layers"]]
    full = str(kinds.index("full"))
    outcome = run("inspect", DEMO, *(full if a == "FULL" else a for a in arguments))
    assert outcome.code != 0 and message in outcome.err
