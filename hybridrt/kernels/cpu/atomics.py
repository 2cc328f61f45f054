"""Numbers that several threads read and write: int64, by their addresses."""

from typing import no_type_check

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

_INT = ir.IntType(64)


@no_type_check
def _at(builder, address):
    return builder.inttoptr(address, _INT.as_pointer())


@intrinsic
@no_type_check
def read(typing_context, address):
    """What stands there by now; whatever was written before it can be seen, too."""

    def code(context, builder, signature, args):
        return builder.load_atomic(_at(builder, args[0]), "acquire", 8)

    return types.int64(types.int64), code


@intrinsic
@no_type_check
def write(typing_context, address, number):
    """For others, who then see whatever was written before it, too."""

    def code(context, builder, signature, args):
        builder.store_atomic(args[1], _at(builder, args[0]), "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), code


@intrinsic
@no_type_check
def claim(typing_context, address):
    """The number that stands there, which then is one more: each comes once.

    So workers can take job after job. Cores are seldom equally fast, of a processor that has two
    kinds of them, or shares them with other programs; the one that is takes more jobs.
    """

    def code(context, builder, signature, args):
        return builder.atomic_rmw("add", _at(builder, args[0]), _INT(1), "acq_rel")

    return types.int64(types.int64), code
