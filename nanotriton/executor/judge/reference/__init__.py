"""The task as a question: its answers, in its own dtype and in float64, and what is found out about it once.

`Reference` is what the rest of the judge asks for answers. Its parts are asked for the rest:
`reference.inputs`, `reference.modules`, `reference.findings`, and `reference.code`, which runs the task's
own code.

    reference.py     the task: its answers in its own dtype and in float64, and a candidate's trials
    inputs.py        draws of its inputs: as the task draws, under stress, moved
    modules.py       its module, built with the weights of a trial
    findings.py      what is known of it
    twin.py          the reference in float64
    kept.py          what depends on a draw alone, for all candidates that share it
    drawn.py         the last draws, for whoever needs them again
    examination.py   what is found out about a task once: is it a fair question, what does it survive
    constants.py     finds arguments that never differ, and a way to move each that the reference survives
    origins.py       which weights of a task may be trained
    modes.py         can it be called in evaluation mode, and does it do other things there
    attributes.py    tensors that forward leaves on the module for others to read
    fakes.py         answers that compute nothing, to find tasks that cannot tell right from wrong
"""
