"""How fast memory is read, by the order in which its lines are asked for before they are used.

    python benchmarks/read_order.py [--repeats 15]

Prints Markdown: GB/s of one thread and of as many as torch has, each of which reads its part of 512
MiB line by line, in turns. `READS_PAGES` in hybridrt/kernels/cpu/vectors.py says on which
processors weights are asked for by pages; this says where they should be. All but torch's sum, of
float32, read memory of large pages, where Linux gives them.
"""

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from statistics import median
from typing import Any, no_type_check

import numpy as np
import torch
from about import machine
from llvmlite import ir
from numba.core import types
from numba.core.cgutils import alloca_once_value, for_range
from numba.extending import intrinsic
from versus_tables import markdown

from hybridrt.kernels.cpu.bfloat16 import integers
from hybridrt.kernels.cpu.jit import inner
from hybridrt.kernels.cpu.share import parallel_kernel, share
from hybridrt.kernels.cpu.vectors import LINE, PAGE, begin_to_read, line_of_pages
from hybridrt.kernels.room import Room

BYTES = 2**29
AT_ONCE = 4  # lines
SUM, NOTHING, NEAREST = "by torch's sum", "not at all", "the nearest cache"
CACHES = {NEAREST: 3, "the second": 2, "the nearest alone": 0}
ORDERS: dict[str, tuple[int, int]] = {
    NOTHING: (0, 0),
    "in a row, 1 KiB before": (1, 1024),
    "in a row, 4 KiB before": (1, PAGE),
    **{f"of {pages} pages in turn": (pages, pages * PAGE) for pages in (2, 4, 8, 16)},
}
"""How many pages take turns, and how many bytes before they are used."""


@no_type_check
def make_read(pages: int, ahead: int, nearness: int) -> Any:
    """A kernel `(threads, memory, found)` whose threads read all of memory, a part each.

    `found` is the address of an int64, to which each adds what it made of what it read: nobody
    would read it else.
    """
    long, words = ir.IntType(64), ir.VectorType(ir.IntType(64), LINE // 8)

    @intrinsic
    @no_type_check
    def read(context, begin, count):
        def code(context, b, signature, args):
            begin, count = args
            zeros = ir.Constant(words, [0] * (LINE // 8))
            totals = [alloca_once_value(b, zeros) for _ in range(AT_ONCE)]
            with for_range(b, b.udiv(count, long(AT_ONCE * LINE))) as loop:
                own = b.add(begin, b.mul(loop.index, long(AT_ONCE * LINE)))
                for i, total in enumerate(totals):
                    line = b.add(own, long(LINE * i))
                    coming = b.add(line, long(ahead))
                    if pages:
                        asked = line_of_pages(b, coming, pages) if pages > 1 else coming
                        begin_to_read(b, asked, nearness)
                    there = b.load(b.inttoptr(line, words.as_pointer()), align=LINE)
                    b.store(b.xor(b.load(total), there), total)
            whole = b.xor(
                b.xor(b.load(totals[0]), b.load(totals[1])),
                b.xor(b.load(totals[2]), b.load(totals[3])),
            )
            found = b.extract_element(whole, ir.IntType(32)(0))
            for i in range(1, LINE // 8):
                found = b.add(found, b.extract_element(whole, ir.IntType(32)(i)))
            return found

        return types.int64(types.int64, types.int64), code

    @inner
    @no_type_check
    def work(worker, workers, memory, found):
        part = BYTES // workers // (AT_ONCE * LINE) * (AT_ONCE * LINE)
        integers(found, workers)[worker] += read(memory + part * worker, part)

    @parallel_kernel
    @no_type_check
    def run(threads, memory, found):
        share(work, threads, (memory, found))

    return run


def measure(threads: int, repeats: int) -> dict[tuple[str, str], float]:
    """GB/s of each order and cache, and of torch's sum; the median of rounds in turns."""
    memory = Room(BYTES).new_empty(torch.empty(0, dtype=torch.uint8), BYTES).fill_(1)
    found, numbers = np.zeros(threads, np.int64), torch.ones(BYTES // 4)
    sides: dict[tuple[str, str], Callable[[], object]] = {(SUM, NEAREST): numbers.sum}
    for (order, asked), (cache, nearness) in product(ORDERS.items(), CACHES.items()):
        if order != NOTHING or cache == NEAREST:
            run = make_read(*asked, nearness)
            sides[order, cache] = partial(run, threads, memory.data_ptr(), found.ctypes.data)
    taken: dict[tuple[str, str], list[float]] = {side: [] for side in sides}
    for turn in range(repeats + 1):
        for side, run in sides.items():
            start = time.perf_counter()
            run()
            if turn:  # the first compiles
                taken[side].append(time.perf_counter() - start)
    return {side: BYTES / median(times) / 1e9 for side, times in taken.items()}


def main(arguments: Sequence[str]) -> None:
    """Reads the command line, prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args(arguments)
    rows: list[list[str]] = []
    for threads in sorted({1, torch.get_num_threads()}):
        torch.set_num_threads(threads)
        found = measure(threads, options.repeats)
        for order in (SUM, *ORDERS):
            sides = [(order, cache) for cache in CACHES]
            rates = [f"{found[side]:.1f}" if side in found else "" for side in sides]
            rows.append([str(threads), order, *rates])
    print(f"`{shlex.join(['python', 'benchmarks/read_order.py', *arguments])}`\n")
    print(", ".join(f"{name} {value}" for name, value in machine().items()) + "\n")
    print("GB/s, by how lines are asked for and into which cache:\n")
    print(markdown(["threads", "lines are asked for", *CACHES], rows))


if __name__ == "__main__":
    main(sys.argv[1:])
