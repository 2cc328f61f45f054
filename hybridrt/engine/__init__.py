"""The engine: schedule -> run -> commit, and what it takes to load a model for it."""
