"""Numbers that several processes of the executor must agree on."""

# Workers on one GPU, at most. A candidate takes 50 ms of one's CPU time, so four would end at 70 a second.
REPLAYERS = 8
REFERENCES = 64  # tasks that a worker keeps loaded
