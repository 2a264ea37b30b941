"""KernelBench and TritonBench, and what serves them."""
