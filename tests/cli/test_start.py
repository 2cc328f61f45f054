"""What every command has in common."""

import subprocess
import sys

import pytest

from hybridrt.cli.errors import reports_errors

_WITHOUT_TORCH = """
import sys
from hybridrt.cli.app import app
commands = ["demo", "generate", "chat", "plan", "inspect", "top", "bench"]
calls = [["--help"], ["--version"], ["generate", "demo", "x", "--temperature=-1"]]
calls += [[command, "--help"] for command in commands]
calls += [["top", "--once", "--json"]]
calls += [["bench", command, "--help"] for command in ("latency", "throughput", "startup")]
for call in calls:
    try:
        app(call)
    except SystemExit as end:
        assert end.code == (2 if "demo" in call[1:] else 0), (call, end.code)
heavy = {"torch", "numpy", "numba", "tokenizers"} & sys.modules.keys()
assert not heavy, heavy
"""


_FIRST_TOKEN = """
import gc, sys
from hybridrt.cli import main
sys.argv = ["hybridrt", "generate", "demo", "amy=372", "--max-tokens=1"]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
needless = {"transformers", "torch._dynamo", "torch._inductor", "sympy", "jinja2", "gguf"}
assert not needless & sys.modules.keys(), needless & sys.modules.keys()
assert gc.isenabled() and gc.get_freeze_count() > 100_000
"""


def _python(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=300, **options
    )


def test_help_and_refused_options_do_not_import_torch():
    done = _python("-c", _WITHOUT_TORCH)
    assert done.returncode == 0, done.stderr
    for command in ("demo", "generate", "chat", "plan", "inspect", "top", "bench"):
        assert command in done.stdout


def test_a_first_token_imports_only_what_it_needs_and_the_collector_skips_that():
    done = _python("-c", _FIRST_TOKEN)
    assert done.returncode == 0, done.stderr


def test_the_module_is_the_command():
    done = _python("-m", "hybridrt", "--version")
    assert done.stdout.startswith("hybridrt ")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_reader_that_leaves_is_no_error():
    program = (
        "import subprocess, sys\n"
        "call = [sys.executable, '-m', 'hybridrt', 'generate', 'demo', 'amy=372',\n"
        "        '--max-tokens=500', '--ignore-eos']\n"
        "writer = subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE)\n"
        "writer.stdout.read(1)\n"
        "writer.stdout.close()\n"
        "sys.stdout.write(writer.stderr.read().decode())\n"
        "sys.exit(writer.wait())\n"
    )
    done = _python("-c", program)
    assert done.stdout == ""
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ValueError("EngineConfig.page_size=0: wrong"), 2, "error: --page-size=0: wrong\n"),
        (ValueError("SamplingParams.stop.0='': wrong"), 2, "error: --stop='': wrong\n"),
        (FileNotFoundError("no such file"), 2, "error: no such file\n"),
        (MemoryError(), 2, "error: MemoryError\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_errors_are_a_message_and_a_code(error, code, message, capsys):
    def fails() -> None:
        raise error

    with pytest.raises(Exception) as caught:
        reports_errors(fails)()
    assert getattr(caught.value, "exit_code", None) == code
    assert capsys.readouterr() == ("", message)


def test_defects_keep_their_traceback():
    def fails() -> None:
        raise RuntimeError("a defect")

    with pytest.raises(RuntimeError, match="a defect"):
        reports_errors(fails)()
