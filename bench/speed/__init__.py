"""The model, the sampler and training, measured: speed, memory, error, and what the laptop run learns.

Models have random weights where only time and memory count. Most of these need a GPU, and say so where there
is none.
"""
