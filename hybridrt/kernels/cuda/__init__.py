"""mamba-ssm's and causal-conv1d's kernels behind our contracts. Imported only where chosen."""
