"""A run: its folder, from the first line of the console to the last file.

    run.py          what both training scripts work with: folder, clock, executor, sampler
    preflight.py    before the first step: which of the user's tasks can be judged?
    provenance.py   what exactly ran: command, code, machine and files
    resume.py       may a run continue in the folder of an earlier start?
    report.py       the numbers of a GRPO step and of a whole run
    advice.py       a line after a step that taught nothing
    pace.py         how long the rest will take

Who may import it. The training scripts may, sample.py, trainer.py and heldout.py. It may import everything
that a step is made of. Nothing that it works with knows of it: neither `parallel`, `sampler` and
`transformer`, nor the executor.
"""
