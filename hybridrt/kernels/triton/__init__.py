"""Triton kernels for NVIDIA GPUs, each with the signature of its contract.

Imported only where chosen: importing one of these modules imports triton. What triton compiles is
marked `no_type_check`, as numba's is. Offsets are int64, since a pool has more than 2^31 elements.
Grids, block shapes and the number of splits follow from shapes and from what the host knows, never
from the device, so that a decode step can be captured in a graph; and how a row is cut into blocks
never depends on the rows beside it, but for the splits of a decode row's context and the tiles of
experts.
"""
