"""The sandbox, and the processes around it: how hostile Python is started, confined, watched and reaped.

The zygote and its children run here. A child enters the sandbox before its first line of candidate code. The
zygote believes nothing of a child and never reads its answer. This wing imports no other part of the project.

    protocol.py   messages between processes, and a child's answer
    zygote.py     the process tree; forking, timing and reaping children
    sandbox.py    the rights that a child gives up
    servers.py    children that compile one kernel after another
"""
