"""A compiler backend that runs graphs as they are and keeps them, and what to ask of them."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._higher_order_ops.auto_functionalize import auto_functionalized_v2

QUIET = pytest.mark.filterwarnings("ignore:Guards may run slower")
"""For tests that compile: torch says so on Python 3.13.0."""


class Graphs:
    """`module.compile(fullgraph=True, backend=Graphs())`.

    `traced` has what Dynamo saw, `functional` what AOTAutograd made of it: there a write to a
    cache gives a new cache, so that nothing but the data says what comes first. Those are run.
    """

    def __init__(self) -> None:
        self.traced: list[fx.GraphModule] = []
        self.functional: list[fx.GraphModule] = []

    def __call__(self, module: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        self.traced.append(module)
        return aot_autograd(fw_compiler=self._keep)(module, inputs)

    def _keep(self, module: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        self.functional.append(module)
        return make_boxed_func(module.forward)


def calls(module: fx.GraphModule) -> list[fx.Node]:
    """The nodes that call ops of this package, in the order they run."""
    return [
        node for node in module.graph.nodes if getattr(op_of(node), "namespace", "") == "hybridrt"
    ]


def op_of(node: fx.Node) -> Any:
    """What a node calls; the op itself, where that was made functional."""
    return node.args[0] if node.target is auto_functionalized_v2 else node.target


def writes(op: Any) -> set[str]:
    """The arguments that an op says it writes."""
    infos = ((argument.name, argument.alias_info) for argument in op._schema.arguments)
    return {name for name, info in infos if info is not None and info.is_write}


def comes_from(node: fx.Node, earlier: fx.Node) -> bool:
    """Whether what a node computes needs what the earlier one did."""
    return earlier in set(_ancestors(node))


def _ancestors(node: fx.Node) -> Iterator[fx.Node]:
    seen, line = set[fx.Node](), [node]
    while line:
        for before in line.pop().all_input_nodes:
            if before not in seen:
                seen.add(before)
                line.append(before)
                yield before
