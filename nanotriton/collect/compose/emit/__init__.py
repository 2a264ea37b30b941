"""Emitters: each file writes stages of one pattern, and each stage becomes one Triton kernel.

    pointwise.py    element-wise operators, and the sum of everything
    rows.py         reductions along some dimensions: softmax, norms, sums of rows
    scan.py         running sums and products
    rank.py         sorting by rank
    gather.py       elements that are put elsewhere
    pool.py         pooling
    conv.py         convolutions
    matmul.py       products of matrices
    attention.py    attention
    kernel.py       what all of them write with
    flat.py         what those share whose programs take elements of the flat output

compose/fuse.py cuts a graph into stages.
"""
