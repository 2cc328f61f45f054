"""What tests of kernels, layers and models share: batches by hand, pools of poison, tolerances."""
