"""A task's own code in the judge's process: imported, run with its own settings, and watched.

The task is trusted, but what it does must stay with itself: a print, a setting, a patch or an exit of its
own is no more than the task's failure, and reaches no candidate's verdict.

    code.py        the module of one task, and the ways in which its code is run
    module.py      a task's file, imported; its arguments; what it prints; its faults
    settings.py    what a task sets for the whole process: active for its own code, undone for all other
    patches.py     the same for functions and modules that it replaces
    asserts.py     what CUDA would assert inside a kernel, as an exception
    watching.py    what dispatch modes share, that see a task's ATen calls
    computing.py   what a reference computes: its ATen calls, watched as it runs once
"""
