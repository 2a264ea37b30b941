"""Emitters: one file a pattern, each writes a stage of the graph as one Triton kernel."""
