"""The judge: the worker process, which decides about a candidate. Trusted; no candidate's Python runs here.

Who runs here. A worker does: one for each core, or a few for each GPU. It runs the task's own `Model`,
`get_inputs` and `get_init_inputs`, draws secret inputs, has the plan replayed, compares, and says what was
wrong in one line. While a child or a compiler works, it goes on with the next candidate: each job is a
generator that yields the children it wants (candidate.py is the spine).

What it trusts. It trusts the task, whose file is executed in this process, without a sandbox. Of a
candidate it has a text, which it parses, and a plan, which it validates. What a child says of itself may be
a failure from a short list, or that a plan cannot express it, with one line of message. It can say neither
`correct` nor `infra_error`.

Who may import it. `executor/base.py` may, to start a worker, and `executor/script.py`, for one path. It may
import every other wing of the executor, `rules`, `plan` and `tasks`.

    start.py        how a worker begins
    worker.py       the process: its loop, its stages and their limits
    job.py          a candidate on its way, the child that it waits for, and what a child's end means
    candidate.py    the spine: rules, recording, trials, further calls, timing, ablation
    recording.py    a recording, asked of a child and read as a stranger's bytes
    module.py       the task's file, imported; its arguments; what it prints; its faults
    reference.py    the task: loaded, drawn for, run in its own dtype and in float64
    examination.py  what is found out about a task once: is it a fair question, what does it survive
    modes.py        can it be called in evaluation mode, and does it do other things there
    drawn.py        the last draws, for whoever needs them again
    kept.py         what depends on a draw alone, for all candidates that share it
    settings.py     what a task sets for the whole process: active for its own code, undone for all other
    patches.py      the same for functions and modules that it replaces
    asserts.py      what CUDA would assert inside a kernel, as an exception
    draws.py        draws of inputs that a candidate cannot foresee: the table of stress kinds
    seeds.py        seeds that a task sets, replaced by ours
    literals.py     numbers of a task's text at which its answer may jump
    computing.py    what a reference computes: its ATen calls, watched as it runs once
    watching.py     what dispatch modes share, that see a task's ATen calls
    kinds.py        which of them a candidate of a task is judged under: the table of trials
    origins.py      which weights of a task may be trained
    moves.py        ways to move arguments that are the same in every draw
    structure.py    ways to move arguments that are drawn with a structure: distinct, sorted, symmetric
    marks.py        integers that stand for none among ids: an ignore_index, a padding id
    constants.py    finds those arguments, and the way that the reference survives
    fakes.py        answers that compute nothing, to find tasks that cannot tell right from wrong
    trial.py        one trial: the candidate runs, then the reference, then they are compared
    configurations.py   the other configurations of autotuned kernels, on a CPU
    attributes.py   tensors that forward leaves on the module for others to read
    tuning.py       an autotuned kernel, after its tuner's runs
    calls.py        further calls of the same module: their answers, and the state that both leave
    reference_calls.py  the same calls, made of the reference
    between.py      other weights between two calls
    memory.py       whose memory an answer lies in, and whether a later call overwrites it
    compare.py      is a tree of tensors the reference's answer
    answer.py       a reference's answer, and one tensor of a candidate's beside it
    checks.py       the tolerance, and what else a tensor must be: a table of named checks
    values.py       errors of one output, measured for these checks
    twin.py         the reference in float64
    nudging.py      the same with operands moved by what rounding may do, where something is rounded
    fairness.py     what the reference is sensitive to is forgiven
    ties.py         which of equal numbers was chosen is forgiven too
    hints.py        what to change, at the end of a message
    faint.py        weights and inputs whose effect is smaller than the tolerance: is it there?
    unread.py       data that was never looked at: does the reference need it?
    runner.py, gpu_runner.py   a plan as something that a trial can run, on the CPU and on a GPU
    fits.py         whether kernels fit on the card, where there is none
    ablation.py     how many launches matter
    measure.py      how fast a right candidate is
    process.py, script.py      the trusted halves of process mode and of whole files
"""
