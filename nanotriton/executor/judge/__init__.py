"""The judge: the worker process, which decides about a candidate. Trusted; no candidate's Python runs here.

Who runs here. A worker does: one for each core, or a few for each GPU. It runs the task's own `Model`,
`get_inputs` and `get_init_inputs`, draws secret inputs, has the plan replayed, compares, and says what was
wrong in one line. While a child or a compiler works, it goes on with the next candidate: each job is a
generator that yields the children it wants (candidate/candidate.py is the spine).

What it trusts. It trusts the task, whose file is executed in this process, without a sandbox. Of a
candidate it has a text, which it parses, and a plan, which it validates. What a child says of itself may be
a failure from a short list, or that a plan cannot express it, with one line of message. It can say neither
`correct` nor `infra_error`.

Who may import it. `executor/base.py` may, to start a worker, and `executor/script.py`, for one path. It may
import every other wing of the executor, `rules`, `plan` and `tasks`.

    start.py      how a worker begins
    worker.py     the process: its loop, its stages and their limits

The rest lies in six folders, each of which opens with a list of its files. A folder imports only those that
stand above it here, and `inputs` and `comparison` know nothing of each other.

    task/         a task's own code in this process: imported, run with its own settings, watched
    inputs/       draws that a candidate cannot foresee: stress, and what no draw would vary
    comparison/   is a tree of tensors the reference's answer? the tolerance and the checks
    reference/    the task as a question: its answers, also in float64, and what its examination finds
    trials/       one trial, and the further calls: the candidate runs, then the reference
    candidate/    the life of one candidate: its children, its plan's replays, its verdict
"""
