"""Kernels: one file per operation. Each file holds the contract and picks the backend."""
