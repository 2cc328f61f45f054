"""Training of the demo checkpoint, and the dense twin of `hybrid_stack`."""
