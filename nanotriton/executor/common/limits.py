"""Numbers that several processes of the executor must agree on."""


REPLAYERS = 8  # workers on one GPU, at most: a candidate takes one 50 ms of CPU there, so four end at 70 a second
REFERENCES = 64  # tasks that a worker keeps loaded
