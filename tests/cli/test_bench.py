"""`hybridrt bench`."""

import pytest

SMALL = ("--prompt-tokens", 20, "--output-tokens", 3, "--repeats", 2)


def test_measures_each_batch(run):
    data = run("bench", "demo", *SMALL, "--batch", 1, "--batch", 3, "--json").json
    assert [row["batch"] for row in data["rows"]] == [1, 3]
    for row in data["rows"]:
        tokens = row["prefill_tokens_per_second"] * row["prefill_seconds"]
        assert tokens == pytest.approx(20 * row["batch"])
        assert row["decode_ms_per_step"] > 0
        assert row["num_preemptions"] == 0
    assert (data["dtype"], data["device"], data["repeats"]) == ("float32", "cpu", 2)


def test_prints_a_table(run):
    out = run("bench", "demo", *SMALL, "--batch", 2, "--device", "cpu").out
    assert "Prompts of 20 tokens, outputs of 3" in out
    assert "decode ms/step" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--output-tokens", 1], "--output-tokens=1 should be at least 2"),
        (["--repeats", 0], "--repeats=0 should be at least 1"),
        (["--batch", 0], "--batch=0 should be at least 1"),
        (["--batch", 65], "--batch=65 should be at most --max-num-seqs=64"),
        (["--prompt-tokens", 2040], "at most 2048 together"),
        (
            [*SMALL, "--batch", 4, "--max-model-len", 32, "--cache-memory", "160KB"],
            "never ran as a whole",
        ),
    ],
)
def test_user_errors(run, arguments, message):
    done = run("bench", "demo", *arguments)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
