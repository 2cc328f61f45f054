"""Imports go one way, from `cli`, `measure` and `llm` to `introspection`, `engine`, `models`,
`layers`, and last `kernels` and `cache`.
"""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import hybridrt

ROOT = Path(hybridrt.__file__).parent

# Each part may import the parts behind it, and itself.
LEAVES = {"values", "config", "request", "batch", "transfer"}
BELOW_LLM = LEAVES | {"engine", "models", "layers", "kernels", "cache", "progress", "show"}
ALLOWED = {
    "values": set(),
    "config": {"values"},
    "request": {"values"},
    "batch": set(),
    "transfer": set(),
    "prompt": set(),
    "progress": {"request"},
    "demo": set(),
    "show": set(),
    "cache": LEAVES | {"show"},
    "kernels": LEAVES,
    "layers": LEAVES | {"kernels", "cache"},
    "models": LEAVES | {"layers", "kernels", "cache"},
    "engine": LEAVES | {"models", "layers", "kernels", "cache", "progress"},
    "introspection": BELOW_LLM | {"prompt"},
    "session": BELOW_LLM | {"prompt", "introspection"},
    "llm": BELOW_LLM | {"session", "prompt", "introspection"},
    "measure": BELOW_LLM | {"llm", "session", "prompt"},
    "__init__": LEAVES | {"llm", "session", "models", "introspection"},
    "report": BELOW_LLM | {"llm", "session", "prompt", "introspection"},
    "cli": BELOW_LLM
    | {"__init__", "llm", "session", "prompt", "demo", "measure", "introspection", "report"},
    "__main__": {"cli"},
}
# Within a part too: nothing of torch may be needed to read a request or a config.
WITHOUT_TORCH = ("values", "config", "request", "prompt", "progress", "show")


def modules() -> list[Path]:
    return sorted(path for path in ROOT.rglob("*.py"))


def part_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """Dotted names of everything that a file imports, inside functions and `if`s too."""
    package = ".".join(["hybridrt", *path.relative_to(ROOT).parent.parts])
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, base] if base else parents)
            names |= {f"{base}.{alias.name}" for alias in node.names}
    return names


def parts_imported(path: Path) -> set[str]:
    parts: set[str] = set()
    for name in imports(path):
        first, *rest = name.split(".")
        if first == "hybridrt":
            part = rest[0] if rest else "__init__"
            # `from hybridrt import LLM` asks the package itself.
            parts.add(part if part in ALLOWED else "__init__")
    return parts


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_imports_only_what_stands_behind_it(path: Path) -> None:
    part = part_of(path)
    assert part in ALLOWED, f"{part} has no place in the order of imports"
    wrong = parts_imported(path) - ALLOWED[part] - {part}
    assert not wrong, f"{part} should not import {sorted(wrong)}"


def test_the_order_has_no_way_back() -> None:
    reached: dict[str, set[str]] = {}
    for part in ALLOWED:  # each is listed behind all that it may import
        assert ALLOWED[part] - {"__init__"} <= reached.keys()
        reached[part] = ALLOWED[part]


def test_imports_are_seen_wherever_they_stand(tmp_path: Path) -> None:
    file = ROOT / "llm.py"
    assert {"engine", "config", "request", "cache"} <= parts_imported(file)
    assert "llm" in parts_imported(ROOT / "__init__.py")  # under TYPE_CHECKING


@pytest.mark.parametrize("part", WITHOUT_TORCH)
def test_requests_and_configs_do_without_torch(part: str) -> None:
    assert not any(name.split(".")[0] == "torch" for name in imports(ROOT / f"{part}.py"))


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_importing_the_package_and_its_values_does_not_import_torch() -> None:
    code = (
        "import sys, hybridrt; from hybridrt import SamplingParams, EngineConfig, RequestOutput;"
        "SamplingParams(n=2); heavy = {'torch', 'transformers', 'numba', 'triton'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    assert run_python(code) == "[]"


def test_no_kernel_imports_triton_before_it_is_asked_for() -> None:
    code = (
        "import sys, pkgutil, importlib, hybridrt.kernels as k;"
        "[importlib.import_module('hybridrt.kernels.' + m.name)"
        " for m in pkgutil.iter_modules(k.__path__) if not m.ispkg];"
        "import hybridrt.llm; print('triton' in sys.modules)"
    )
    assert run_python(code) == "False"


def test_public_names_are_found_when_asked_for_and_others_are_not() -> None:
    for name in hybridrt.__all__:
        assert getattr(hybridrt, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = hybridrt.Nothing  # pyright: ignore[reportAttributeAccessIssue]


def test_a_step_that_is_recorded_leaves_the_compiler_and_its_symbols_out() -> None:
    """Their imports take a second and a tenth of one, in which no token comes."""
    code = (
        "import sys, torch; from hybridrt.kernels.tape import recorded\n"
        "x, weight = torch.ones(2, 5, 3), torch.ones(4, 3)\n"
        "with torch.inference_mode(), recorded() as tape:\n"
        "    torch.nn.functional.linear(x, weight, torch.ones(4)) + torch.matmul(x, weight.T)\n"
        "assert len(tape); print({'torch._dynamo', 'sympy'} & sys.modules.keys())"
    )
    assert run_python(code) == "set()"
