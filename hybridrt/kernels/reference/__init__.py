"""Plain torch: the definition of every operation, the CPU path and the oracle."""
