"""How numba compiles what is a part of kernels: it is made machine code within them alone.

Else each function, with all that it calls, is optimised and made machine code by itself, and once
more in every one that calls it. Nobody runs what that gives: a kernel has all of its parts in it.

What a part says nothing about, such as its mathematics, it has from the function that calls it.
numba compiles it for the first one that does and gives that to all others, so that their bits would
depend on which kernel a process, or the one that left it on disk, happened to need first.
"""

from collections.abc import Callable
from typing import Any, Literal

from numba import _dynfunc  # pyright: ignore[reportAttributeAccessIssue]
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.compiler_lock import require_global_compiler_lock
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.registry import CPUDispatcher
from numba.core.targetconfig import ConfigStack
from numba.core.typed_passes import NativeLowering


class _PartLibrary(JITCodeLibrary):
    """Functions, and those that they call, for others to link."""

    def finalize(self) -> None:
        """As numba does it, without optimising, and with nothing for the processor."""
        require_global_compiler_lock()
        for library in dict.fromkeys(self._linking_libraries):
            self._reload_init.update(library._reload_init)
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self._finalize_dynamic_globals()
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _PartLowering(NativeLowering):
    """As numba does it, but for what makes a function that can be run."""

    _name = "part_lowering"

    def run_pass(self, state: Any) -> Literal[True]:
        context, name = state.targetctx, state.func_id.func_qualname
        state.library = _PartLibrary(context.codegen(), name)
        state.flags.no_compile = True
        super().run_pass(state)
        state.flags.no_compile = False
        # Callers know a function by an object, whose address is nowhere.
        function = _dynfunc.make_function(
            state.cr.fndesc.lookup_module(), name, name, 0, state.cr.env, (state.library,)
        )
        context.insert_user_function(function, state.cr.fndesc, [state.library])
        state.reload_init.extend(state.library._reload_init)
        state.cr = state.cr._replace(cfunc=function)
        return True


class PartCompiler(Compiler):
    """Of functions that only compiled ones call."""

    def define_pipelines(self) -> list[PassManager]:
        (pipeline,) = super().define_pipelines()
        pipeline.passes = [
            (_PartLowering if step is NativeLowering else step, about)
            for step, about in pipeline.passes
        ]
        return [pipeline]


class Part(CPUDispatcher):
    """A function that only compiled ones call, compiled once for each kind of those."""

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        self._by_caller: dict[tuple[str, ...], dict[Any, Any]] = {}
        targetoptions = {"nopython": True, **options}
        super().__init__(function, targetoptions=targetoptions, pipeline_class=PartCompiler)

    @property
    def overloads(self) -> dict[Any, Any]:
        """By kinds of arguments, what was compiled for such a caller as is compiled now."""
        caller = ConfigStack.top_or_none()
        kind = tuple(str(getattr(caller, name, None)) for name in _TAKEN_OVER)
        return self._by_caller.setdefault(kind, {})

    @overloads.setter
    def overloads(self, found: dict[Any, Any]) -> None:
        """numba sets what there is before anything was compiled."""


_TAKEN_OVER = ("fastmath", "error_model", "forceinline")
"""What a function has from its caller, if it says nothing about it."""
