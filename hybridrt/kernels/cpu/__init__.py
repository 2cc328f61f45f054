"""numba kernels for the CPU, compiled once and kept on disk."""
