"""Numbers that several processes of the executor must agree on."""

import errno

# Workers on one GPU, at most. A candidate takes 60 ms of one's CPU time, and a real kernel with a task of
# its own 185 ms (results/executor_h200.json): eight end at 130 and at 43 a second.
REPLAYERS = 8
REFERENCES = 64  # tasks that a worker keeps loaded
# Errors by which a machine says that it has no process, file or room on its disk left: no candidate's fault
SHORTAGES = frozenset(
    [errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO]
)
