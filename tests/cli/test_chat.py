"""`hybridrt chat`."""

GREEDY = ("--temperature", 0, "--max-tokens", 4)


def test_each_turn_is_shown_all_before_it(run, chatty):
    said = ("--system", "now=1", "--message", "amy=372", "--message", "amy?")
    first, second = run("chat", chatty, *said, *GREEDY, "--json").lines
    assert first["prompt"] == "now=1\namy=372\n"
    assert second["prompt"] == f"{first['prompt']}{first['outputs'][0]['text']}\namy?\n"


def test_lines_of_standard_input_are_messages(run, chatty):
    said = run("chat", chatty, *GREEDY, stdin="amy=372\n\namy?\n")
    asked = run("chat", chatty, *GREEDY, "--message", "amy=372", "--message", "amy?")
    assert said.code == 0
    assert said.out == asked.out != ""


def test_needs_a_chat_template(run):
    done = run("chat", "demo", "--message", "hi")
    assert (done.code, done.out) == (2, "")
    assert "no chat template" in done.err
