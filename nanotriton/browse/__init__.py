"""A run to look at: its folder becomes one HTML page that needs no network and no server.

runs.py reads metrics and settings, samples.py packs the samples, page.py joins both with the hand-written
files of web/. __main__.py is the command line. Nothing here imports torch.
"""
