"""How long do the rules take before a candidate runs: to find it in a completion, and to read it?

    python -m bench.executor.rules --out results/rules.json

Candidates are those of tests/exploits and tests/honest. A completion is a candidate in a fenced block; one
more has 20,000 blocks. Each is timed several times and the fastest counts. Exit status 1 if a median is 5 ms
or more, or if the long completion takes 5 s.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from bench.results import command, environment, write_json
from nanotriton import config
from nanotriton.rules.extract import extract_candidate
from nanotriton.rules.rules import check_source
from tests.candidates import read

LIMIT_MS = 5.0  # for the median candidate
LONG_LIMIT_MS = 5000.0  # for the long completion
LONG = "```python\nclass ModelNew: pass\n" * 20_000 + "`" * 100_000


@dataclass
class Config:
    repeats: Annotated[int, ">= 1"] = 20  # times that each is timed
    out: str = ""  # JSON file for the results; empty: print only


def milliseconds(call: Callable[[], object], repeats: int) -> float:
    """CPU time of one call: the fastest of several."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return 1e3 * min(times)


def figures(found: dict[str, float], limit: float) -> dict:
    """What is told of one check. found: {candidate: milliseconds}."""
    slowest = max(found, key=found.get)
    return {
        "candidates": len(found),
        "median_ms": round(statistics.median(found.values()), 3),
        "largest_ms": round(found[slowest], 3),
        "slowest": slowest,
        "limit_ms": limit,
    }


def measure(sources: dict[str, str], repeats: int) -> dict[str, dict]:
    """{check: its figures}. sources: candidates by name."""
    rules, extraction = {}, {}
    for name, source in sources.items():
        completion = f"Here it is:\n\n```python\n{source}\n```\n"
        rules[name] = milliseconds(lambda source=source: check_source(source, "strict"), repeats)
        extraction[name] = milliseconds(lambda text=completion: extract_candidate(text), repeats)
    long = {"20,000 blocks": milliseconds(lambda: extract_candidate(LONG), 1)}
    return {
        "rules of policy strict": figures(rules, LIMIT_MS),
        "extraction": figures(extraction, LIMIT_MS),
        "extraction, long": figures(long, LONG_LIMIT_MS),
    }


def main(argv: list[str] | None = None) -> int:
    cfg = config.parse(Config, argv)
    sources = {case.name: case.source for case in read("exploits") + read("honest")}
    checks = measure(sources, cfg.repeats)
    for name, found in checks.items():
        print(f"{name}: {json.dumps(found)}")
    if cfg.out:
        about = {"command": command("bench.executor.rules"), "environment": environment()}
        write_json(cfg.out, about | {"checks": checks})
    return 0 if all(found["median_ms"] < found["limit_ms"] for found in checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
