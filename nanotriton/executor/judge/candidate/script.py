"""Whole files that run their own tests, the trusted side: a child records or runs one, and its answer is
written to a file."""

import hashlib
import json
import os
from collections.abc import Generator
from typing import Any

from nanotriton.executor.child.script import CPU_ONLY, STDOUT
from nanotriton.executor.sandbox.protocol import Ended

ANSWER_BYTES = 1 << 30


def answer_path(root: str, source: str) -> str:
    return os.path.join(root, "answers", hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest())


def script_mode(job, worker) -> Generator:
    """One file to its end, its answer written to the executor's folder.

    Raises Fault if it does not get there.
    """
    from nanotriton.executor.judge.candidate.candidate import check_rules
    from nanotriton.executor.judge.candidate.job import Spawn, check_ended, not_its_own
    from nanotriton.executor.judge.candidate.process import confinement
    from nanotriton.executor.sandbox.sandbox import Limits
    from nanotriton.plan import wire
    from nanotriton.verdict import Fault

    with worker.stage("rules", job.timeout):
        check_rules(job)
    if worker.device == "cpu":
        how = "record"
        limits = Limits(job.timeout, job.memory, output=ANSWER_BYTES)
        options = {}
    else:
        how, (limits, options) = "run", confinement(job, ANSWER_BYTES)
    child = Spawn("script", {"how": how}, limits, (), options)
    ended: Ended = yield child
    worker.add_child(how, ended)
    waited = ended.killed == "timeout" and ended.cpu < job.timeout / 2  # for the machine more than for itself
    crowded = how == "run" and (ended.header or {}).get("status") == "memory_limit"  # by others on its GPU
    if waited or crowded or not_its_own(ended):
        ended = yield child
        worker.add_child(how, ended)
    header = check_ended(ended, limits, frozenset(() if worker.device == "cpu" else ["illegal_memory"]))
    if how == "record":
        tree = replay(job, worker, ended.payload)
    else:
        try:
            tree, _ = wire.rebuild(header["tree"], memoryview(ended.payload))
        except (wire.WireError, KeyError) as error:
            raise Fault("crashed", f"the process left an answer that can't be read: {error}") from None
    description, tensors = wire.describe(tree)
    text = json.dumps({"tree": description, "stdout": str(header.get("stdout", ""))[:STDOUT]}).encode()
    path = answer_path(os.path.dirname(worker.folder), job.source)
    with open(path + ".tmp", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.write(wire.raw(tensors))
    os.replace(path + ".tmp", path)


def replay(job, worker, data: bytes) -> Any:
    """The answer of a recorded file."""
    from nanotriton.executor.replay.replayer import Replay, ReplayError
    from nanotriton.plan.plan import Plan, PlanError
    from nanotriton.verdict import Fault, out_of_memory

    try:
        with worker.stage("validate", job.timeout):
            plan = Plan.from_bytes(data, job.memory)
        job.facts |= {"recordable": True, "launches": len(plan.launches())}
        with worker.stage("run", job.timeout):
            return Replay(plan, "cpu").run([])
    except PlanError as error:
        raise Fault(
            "memory_limit" if "bytes of tensors" in str(error) else "crashed", f"plan: {error}"
        ) from None
    except ReplayError as error:
        status = "unsupported" if any(text in error.message for text in CPU_ONLY) else error.status
        raise Fault(status, str(error)) from None
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        raise Fault("memory_limit", f"it used more than {job.memory >> 20} MiB") from None
