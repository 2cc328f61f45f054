"""Layers: the mathematics of each mixer, and the format in which it caches."""
