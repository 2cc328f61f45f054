"""Pictures of a model's cache: one page to open offline (`page`), figures for papers (`figures`).

Numbers are made in `memory`, `stack`, `recording`, `frames` and `heat`; the rest only draws them.
"""
