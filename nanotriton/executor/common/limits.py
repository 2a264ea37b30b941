"""Numbers that several processes of the executor must agree on."""

# workers on one GPU, at most: a candidate takes one 50 ms of CPU there, so four end at 70 a second
REPLAYERS = 8
REFERENCES = 64  # tasks that a worker keeps loaded
