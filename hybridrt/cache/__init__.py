"""Cache: from bytes to views, and who holds which page. Knows nothing of heads or kernels."""
