"""What products by AMX take, by how many of its registers they name. For a processor that has AMX.

    python benchmarks/tile_registers.py [--seconds 20]

Prints Markdown: nanoseconds of a product of two registers, by one thread and by as many as torch
has, of loops that load what they multiply from the nearest cache. At times a core has registers to
spare, so that loads don't wait for what is multiplied, and at times few are left: rounds are told
apart by what the most registers take beside products without loads, in turns with them.
"""

import argparse
import shlex
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any, no_type_check

import numpy as np
import torch
from about import machine
from llvmlite import ir
from numba.core import types
from numba.core.cgutils import for_range
from numba.extending import intrinsic
from versus_tables import markdown

from hybridrt.kernels.cpu.jit import inner
from hybridrt.kernels.cpu.share import parallel_kernel, share
from hybridrt.kernels.cpu.tile_registers import (
    ROWS,
    hold,
    in_registers,
    load_tile,
    multiplies_tiles,
    multiply,
    release_tiles,
    take_tiles,
)

REGISTER = 4 * ROWS * ROWS  # bytes
ROOM = 16 * REGISTER  # of a thread
LOOPS = 5_000
PRODUCTS = 4  # of each loop
CROWDED = 2.0  # times as long as products without loads, from which on few registers are left

ALONE = "none is loaded"
MOST = "8: 4 sums, 2 of either"
LOADS = {
    ALONE: [(None, None, total, 4, 6) for total in range(4)],
    MOST: [(4, 6, 0, 4, 6), (None, 7, 1, 4, 7), (5, None, 2, 5, 6), (None, None, 3, 5, 7)],
    "7: 4 sums, 1 of vectors, 2 of weights": [
        (4 if total == 0 else None, 5 + total % 2, total, 4, 5 + total % 2) for total in range(4)
    ],
    "6: 4 sums, 1 of either": [(4 if n % 2 == 0 else None, 5, n, 4, 5) for n in range(4)],
    "4: 2 sums, 1 of either": [(2 if n % 2 == 0 else None, 3, n % 2, 2, 3) for n in range(4)],
}
"""By registers: for each product which ones are loaded before it, if any, of vectors and of
weights; that of sums; and both that are multiplied."""


@no_type_check
def make_loop(steps: Iterable[tuple[int | None, int | None, int, int, int]]) -> Any:
    """A kernel `(threads, room, loops)`: each thread multiplies what stands in its own room."""

    @intrinsic
    @no_type_check
    def loop(context, room, loops):
        def code(context, b, signature, args):
            room, loops = args
            long = ir.IntType(64)
            sums = {total: b.add(room, long(REGISTER * total)) for _, _, total, _, _ in steps}
            always = ir.Constant(ir.IntType(1), 1)
            with in_registers(b, always, sums, 4 * ROWS), for_range(b, loops):
                for number, (vectors, weights, total, one, other) in enumerate(steps):
                    for tile in (vectors, weights):
                        if tile is not None:
                            place = b.add(room, long(REGISTER * (4 + (number + tile) % 8)))
                            load_tile(b, tile, place, long(4 * ROWS))
                    multiply(b, "tdpbf16ps", total, one, other)
            return context.get_dummy_value()

        return types.none(types.int64, types.int64), code

    @inner
    @no_type_check
    def work(worker, workers, room, loops):
        tiles = take_tiles(True)
        hold(tiles, ROWS, ROWS)
        loop(room + ROOM * worker, loops)
        release_tiles(tiles)

    @parallel_kernel
    @no_type_check
    def run(threads, room, loops):
        share(work, threads, (room, loops))

    return run


def measure(threads: int, seconds: float) -> dict[bool, dict[str, list[float]]]:
    """Nanoseconds of a product, of each round: where few registers were left, and elsewhere."""
    room = np.zeros(ROOM * (threads + 1), np.uint8)
    place = -(-room.ctypes.data // ROOM) * ROOM
    runs = {name: make_loop(steps) for name, steps in LOADS.items()}
    found: dict[bool, dict[str, list[float]]] = {
        crowded: defaultdict(list) for crowded in (False, True)
    }

    def time_of(name: str) -> float:
        start = time.perf_counter()
        runs[name](threads, place, LOOPS)
        return 1e9 * (time.perf_counter() - start) / (LOOPS * PRODUCTS)

    for name in runs:
        time_of(name)  # compiles
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name in runs:
            states = [time_of(MOST) > CROWDED * time_of(ALONE)]
            took = time_of(name)
            states.append(time_of(MOST) > CROWDED * time_of(ALONE))
            if states[0] == states[1]:
                found[states[0]][name].append(took)
    return found


def main(arguments: Sequence[str]) -> None:
    """Reads the command line, prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20, help="for each number of threads")
    options = parser.parse_args(arguments)
    if not multiplies_tiles():
        parser.error("this processor has no AMX, or this process may not use it")
    rows: list[list[str]] = []
    for threads in sorted({1, torch.get_num_threads()}):
        for crowded, found in measure(threads, options.seconds).items():
            if not all(found[name] for name in LOADS):
                continue
            times = {name: median(found[name]) for name in LOADS}
            where = "left to few" if crowded else "to spare"
            rounds = min(len(values) for values in found.values())
            row = [str(threads), where, f"{rounds}"]
            rows.append(row + [f"{took:.1f}" for took in times.values()])
    print(f"`{shlex.join(['python', 'benchmarks/tile_registers.py', *arguments])}`\n")
    print(", ".join(f"{name} {value}" for name, value in machine().items()) + "\n")
    print("Nanoseconds of a product, by registers that are named:\n")
    print(markdown(["threads", "registers", "rounds", *LOADS], rows))


if __name__ == "__main__":
    main(sys.argv[1:])
