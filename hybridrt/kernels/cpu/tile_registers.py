"""The registers of AMX, and products of two of them, written out for LLVM.

AMX has eight registers of 16 rows of 64 bytes, and multiplies two of them: 16 vectors, 32 inputs
of each, with these inputs of 16 outputs, for which pairs of inputs have to stand side by side, as
`packed_dot` reads them. Each sum goes on from 32 inputs to the next 32, however many vectors there
are.

A process has to ask its kernel for these registers (`multiplies_tiles`). How much of each is filled
has to be said before, which takes longer than a product: `take_tiles` keeps what was said last.

A core has registers to spare, so that one can be filled while what stood in it is multiplied. At
times few are left, as it seems where the core's other thread is at work, perhaps for another
machine; then a product takes the longer, the more registers a loop names (benchmarks/
tile_registers.py). So no more are named than are needed at once.
"""

from contextlib import contextmanager
from functools import cache
from typing import Any, no_type_check

import torch
from llvmlite import binding, ir
from numba.core import types
from numba.core.cgutils import alloca_once, for_range
from numba.extending import intrinsic

from hybridrt.kernels.blocked_matrices import BLOCK as OUTPUTS
from hybridrt.kernels.cpu.jit import inner
from hybridrt.kernels.cpu.vectors import begin_to_read, call

ROWS = 16
"""Of a register: vectors, outputs, or pairs of inputs."""

NEAR = 1024
"""Bytes from what begins to be read to what is read; a page ahead is slower by a tenth."""

FAR = 3072
"""The same where the second cache is to have it: the nearest one can wait for a few lines only."""

RUNS = 4
"""Of `ROWS` vectors that `multiply_runs` takes."""

SUM_BYTES = 4 * OUTPUTS  # of a vector

REGISTER_BYTES = 4 * ROWS * ROWS

SUMS, VECTORS, WEIGHTS = (0, 1, 2, 3), (4, 5), 6  # which register holds what

_FEATURES = binding.get_host_cpu_features()
HAS_TILES = all(_FEATURES.get(f"amx-{part}") for part in ("tile", "bf16", "int8"))
"""Whether the processor has them; `multiplies_tiles` says whether they may be used."""

_BYTE, _INT, _LONG = (ir.IntType(bits) for bits in (8, 32, 64))


@cache
def multiplies_tiles() -> bool:
    """Whether the processor has them, and this process may use them."""
    return HAS_TILES and torch.cpu._init_amx()


@intrinsic
@no_type_check
def _set_tiles(typing_context, rows, pairs):
    """Has registers hold so many vectors, of so many pairs.

    What stood in them is gone.
    """

    def code(context, builder, signature, args):
        if HAS_TILES:
            _write_sizes(builder, *args)
        return context.get_dummy_value()

    return types.none(types.int64, types.int64), code


@no_type_check
def _write_sizes(b, rows, pairs):
    sizes = alloca_once(b, ir.ArrayType(_LONG, 8))

    def put(word, *parts):
        total = _LONG(0)
        for value, shift in parts:
            value = value if isinstance(value, ir.Value) else _LONG(value)
            total = b.or_(total, b.shl(value, _LONG(shift)))
        b.store(total, b.gep(sizes, [_INT(0), _INT(word)], inbounds=True))

    vector_bytes = b.mul(pairs, _LONG(4))
    for word in (1, 4, 5, 7):
        put(word)
    put(0, (1, 0))  # the only palette
    put(2, *((64, 16 * tile) for tile in SUMS))  # bytes of a row
    put(3, (vector_bytes, 0), (vector_bytes, 16), (64, 32), (64, 48))
    filled = (rows,) * 6 + (pairs,) * 2
    put(6, *((count, 8 * tile) for tile, count in enumerate(filled)))
    _amx(b, "ldtilecfg", b.bitcast(sizes, _BYTE.as_pointer()))


@intrinsic
@no_type_check
def _release_tiles(typing_context):
    def code(context, builder, signature, args):
        if HAS_TILES:
            _amx(builder, "tilerelease")
        return context.get_dummy_value()

    return types.none(), code


@no_type_check
def _make_dot(instruction, parts=1, at_once=OUTPUTS // ROWS):
    """Multiplies a register of vectors with `OUTPUTS`, and adds to `sums`, or writes them `anew`.

    Of vectors that are sums of `parts`, each step of one part lies behind that of the part before.
    Weights of a pair of inputs are `row_bytes` from those of the next, and those of the second half
    of the outputs `half_bytes` from those of the first. It has so many registers of sums `at_once`,
    and takes all steps for them before others.

    With every step so many `rows` of weights that lie `ahead` are read, or so many `lines`, which
    are needed later. With fewer sums at once these rows come into the second cache only: what the
    nearest one waits for would keep it from what is multiplied.
    """

    @intrinsic
    def dot(
        typing_context, anew, weights, row_bytes, half_bytes, vectors, vector_bytes, steps, sums,
        ahead, rows, lines
    ):  # fmt: skip
        def code(context, builder, signature, args):
            if HAS_TILES:
                _write_dot(builder, instruction, parts, at_once, *args)
            return context.get_dummy_value()

        return types.none(types.boolean, *[types.int64] * 10), code

    return dot


dot = _make_dot("tdpbf16ps")
dot_in_halves = _make_dot("tdpbf16ps", at_once=2)
"""With fewer registers, for weights in the nearest cache: from memory all outputs are better read
in one go."""

dot_signed, dot_unsigned = _make_dot("tdpbssd"), _make_dot("tdpbusd")
"""Of bytes, four side by side in place of a pair, with signed ones; their sums have 32 bits."""

dot_both = _make_dot("tdpbf16ps", parts=2)
"""Of pairs, with vectors that are sums of two."""


@no_type_check
def _write_dot(
    b, instruction, parts, at_once, anew, weights, row_bytes, half_bytes, vectors, vector_bytes,
    steps, sums, ahead, rows, lines
):  # fmt: skip
    def line_of(row, r):
        return offset(b, row, b.mul(half_bytes, _LONG(r // 2)), _LONG(4 * ROWS * (r % 2)))

    own_bytes, held = b.mul(row_bytes, _LONG(ROWS)), VECTORS[:parts]
    for first in range(0, OUTPUTS // ROWS, at_once):
        outputs = range(first, first + at_once)
        places = {SUMS[r - first]: b.add(sums, _LONG(4 * ROWS * r)) for r in outputs}
        with in_registers(b, anew, places, SUM_BYTES), for_range(b, steps) as loop:
            with for_range(b, rows) as read:
                number = b.add(b.mul(loop.index, rows), read.index)
                for r in outputs:
                    line = line_of(b.add(ahead, b.mul(number, row_bytes)), r)
                    if at_once == len(SUMS):
                        read_line(b, line)
                    else:
                        begin_to_read(b, line, 2)
            if first == 0:
                with for_range(b, lines) as read:
                    number = b.add(b.mul(loop.index, lines), read.index)
                    begin_to_read(b, b.add(ahead, b.mul(number, _LONG(64))), 2)
            given = b.add(vectors, b.mul(loop.index, _LONG(4 * ROWS * parts)))
            for part, tile in enumerate(held):
                load_tile(b, tile, b.add(given, _LONG(4 * ROWS * part)), vector_bytes)
            own = b.add(weights, b.mul(loop.index, own_bytes))
            for r in outputs:
                load_tile(b, WEIGHTS, line_of(own, r), row_bytes)
                for tile in held:
                    multiply(b, instruction, SUMS[r - first], tile, WEIGHTS)


@no_type_check
def read_line(b, address):
    """Has a line of memory in the nearest cache, and begins to read those behind it."""
    begin_to_read(b, b.add(address, _LONG(NEAR)))
    begin_to_read(b, b.add(address, _LONG(FAR)), 2)
    word = b.load(b.inttoptr(address, _LONG.as_pointer()), align=8)
    b.asm(ir.FunctionType(ir.VoidType(), [_LONG]), "", "r", [word], True)  # it stays there


@intrinsic
@no_type_check
def dot_runs(typing_context, anew, runs, blocks, count, steps, sums):
    """See `multiply_runs`, which has registers sized before."""

    def code(context, builder, signature, args):
        if HAS_TILES:
            _write_runs(builder, *args)
        return context.get_dummy_value()

    return types.none(types.boolean, types.CPointer(types.int64), *[types.int64] * 4), code


@no_type_check
def _write_runs(b, anew, runs, blocks, count, steps, sums):
    def number(index):
        return b.load(b.gep(runs, [_INT(index)]))

    row_bytes, held = _LONG(4 * ROWS), VECTORS[0]
    begins = [(number(2 * run), number(2 * run + 1)) for run in range(RUNS)]
    places = {SUMS[run]: b.add(sums, _LONG(4 * ROWS * ROWS * run)) for run in range(RUNS)}
    with in_registers(b, anew, places, 4 * ROWS), for_range(b, count) as block:
        first = b.mul(block.index, steps)
        with for_range(b, steps) as loop:
            own = b.mul(b.add(first, loop.index), _LONG(4 * ROWS * ROWS))
            load_tile(b, WEIGHTS, b.add(blocks, own), row_bytes)
            for run, (begin, step_bytes) in enumerate(begins):
                load_tile(b, held, b.add(begin, b.mul(loop.index, row_bytes)), step_bytes)
                multiply(b, "tdpbf16ps", SUMS[run], held, WEIGHTS)


@intrinsic
@no_type_check
def dot_rows(
    typing_context, anew, runs, count, vectors, vector_bytes, apart, steps, sums, later, lines
):  # fmt: skip
    """See `multiply_rows`, which has registers sized before.

    With each register of rows so many `lines` are read into the second cache, which are needed
    later: of rows that lie as `later` says in the way of `runs`.
    """

    def code(context, builder, signature, args):
        if HAS_TILES:
            _write_rows(builder, *args)
        return context.get_dummy_value()

    return types.none(types.boolean, *[types.int64] * 9), code


@no_type_check
def _write_rows(b, anew, runs, count, vectors, vector_bytes, apart, steps, sums, later, lines):
    """Two steps at a time, for which vectors are read once, and the last one alone."""

    def write_steps(first, width):
        own_sums = b.add(sums, b.mul(first, _LONG(2 * REGISTER_BYTES)))
        places = {
            SUMS[2 * step + half]: b.add(
                own_sums, _LONG(2 * REGISTER_BYTES * step + 4 * ROWS * half)
            )
            for step in range(width)
            for half in range(2)
        }
        with in_registers(b, anew, places, 8 * ROWS), for_range(b, count) as run:
            begin, row_bytes = _run(b, runs, run.index)
            later_begin, later_bytes = _run(b, later, run.index)
            own = b.add(vectors, b.mul(run.index, _LONG(4 * ROWS)))
            for half, tile in enumerate(VECTORS):
                load_tile(b, tile, b.add(own, b.mul(apart, _LONG(half))), vector_bytes)
            for step in range(width):
                skipped = b.mul(b.add(first, _LONG(step)), _LONG(4 * ROWS))
                load_tile(b, WEIGHTS, b.add(begin, skipped), row_bytes)
                for half, tile in enumerate(VECTORS):
                    multiply(b, "tdpbf16ps", SUMS[2 * step + half], tile, WEIGHTS)
                with for_range(b, lines) as line:
                    row = b.mul(line.index, later_bytes)
                    begin_to_read(b, offset(b, later_begin, row, skipped), 2)

    pairs = b.udiv(steps, _LONG(2))
    with for_range(b, pairs) as pair:
        write_steps(b.mul(pair.index, _LONG(2)), 2)
    with for_range(b, b.urem(steps, _LONG(2))):
        write_steps(b.mul(pairs, _LONG(2)), 1)


@no_type_check
def _run(b, runs, index):
    """Where a run's rows begin, and the bytes from one to the next."""
    place = b.add(runs, b.mul(index, _LONG(16)))
    numbers = (b.inttoptr(b.add(place, _LONG(8 * part)), _LONG.as_pointer()) for part in range(2))
    return tuple(map(b.load, numbers))


@contextmanager
@no_type_check
def in_registers(b, anew, places, row_bytes):
    """Has registers begin with the sums in their places, or `anew`; at the end puts them there."""
    with b.if_else(anew) as (begins, goes_on):
        with begins:
            for tile in places:
                _amx(b, "tilezero", _register(tile))
        with goes_on:
            for tile, place in places.items():
                load_tile(b, tile, place, _LONG(row_bytes))
    yield
    for tile, place in places.items():
        _amx(b, "tilestored64", _register(tile), _pointer(b, place), _LONG(row_bytes))


@no_type_check
def load_tile(b, tile, place, row_bytes):
    """Fills a register with rows that lie so many bytes apart."""
    _amx(b, "tileloadd64", _register(tile), _pointer(b, place), row_bytes)


@no_type_check
def multiply(b, instruction, total, vectors, weights):
    """Adds products of two registers to a third one."""
    _amx(b, instruction, *map(_register, (total, vectors, weights)))


@no_type_check
def offset(b, place, *others):
    """A place and some numbers, added."""
    for other in others:
        place = b.add(place, other)
    return place


@no_type_check
def _amx(b, name, *args):
    """Writes an instruction for LLVM."""
    call(b, f"llvm.x86.{name}", ir.VoidType(), list(args))


def _register(number: int) -> Any:
    """As an instruction names it."""
    return ir.Constant(_BYTE, number)


@no_type_check
def _pointer(b, place):
    return b.inttoptr(place, _BYTE.as_pointer())


# An array would be counted with every call that it is passed to; an address is not.


@intrinsic
@no_type_check
def _allocate(typing_context):
    def code(context, builder, signature, args):
        place = context.nrt.allocate(builder, context.get_constant(types.uintp, 8))
        builder.store(_LONG(0), builder.bitcast(place, _LONG.as_pointer()))
        return builder.ptrtoint(place, _LONG)

    return types.int64(), code


@intrinsic
@no_type_check
def _free(typing_context, place):
    def code(context, builder, signature, args):
        context.nrt.free(builder, builder.inttoptr(args[0], _BYTE.as_pointer()))
        return context.get_dummy_value()

    return types.none(types.int64), code


@intrinsic
@no_type_check
def _read(typing_context, place):
    def code(context, builder, signature, args):
        return builder.load(builder.inttoptr(args[0], _LONG.as_pointer()))

    return types.int64(types.int64), code


@intrinsic
@no_type_check
def _write(typing_context, place, number):
    def code(context, builder, signature, args):
        builder.store(args[1], builder.inttoptr(args[0], _LONG.as_pointer()))
        return context.get_dummy_value()

    return types.none(types.int64, types.int64), code


@inner
@no_type_check
def take_tiles(are_there):  # pragma: no cover  (compiled, as all below)
    """For `add_by_tiles`, where it keeps what the registers hold; without registers 0."""
    return _allocate() if are_there else 0


@inner
@no_type_check
def release_tiles(tiles):  # pragma: no cover
    """Has nobody save registers that are no longer needed."""
    if tiles != 0:
        _release_tiles()
        _free(tiles)


@inner
@no_type_check
def hold(tiles, rows, pairs):  # pragma: no cover
    """Has registers hold so many vectors, of so many pairs."""
    sizes = rows | pairs << 8
    if _read(tiles) != sizes:
        _set_tiles(rows, pairs)
        _write(tiles, sizes)
