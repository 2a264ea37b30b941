"""Which candidate goes to which worker next."""

from collections import deque
from types import SimpleNamespace

from nanotriton.executor.queue import WINDOW, Entry, take


def queue_of(tasks: str) -> deque[Entry]:
    return deque(Entry((task, str(i)), {}) for i, task in enumerate(tasks))


def worker(tasks: str, load: int = 0) -> SimpleNamespace:
    return SimpleNamespace(tasks=list(tasks), entries=range(load))


def names(queue) -> str:
    return "".join(e.key[0] for e in queue)


def test_a_known_task_then_a_new_one_then_whoever_is_first():
    a, b, d = worker("a"), worker("b"), worker("d")
    queue = queue_of("abcabc")
    assert take(queue, [b], [a, b])[1].key == ("b", "1") and names(queue) == "acabc"
    assert take(queue, [d], [a, b, d])[1].key == ("c", "2") and names(queue) == "aabc"
    assert take(queue, [d], [a, b, worker("c"), d])[1].key == ("a", "0") and names(queue) == "abc"


def test_a_candidate_goes_to_a_worker_that_knows_its_task_although_another_is_idle():
    busy, busier, idle = worker("a", 1), worker("a", 2), worker("")
    workers = [busier, busy, idle]
    assert take(queue_of("a"), workers, workers)[0] is busy
    assert take(queue_of("ba"), workers, workers)[0] is busy
    assert take(queue_of("bc"), workers, workers)[0] is idle


def test_no_worker_is_idle_while_those_that_know_the_task_are_full():
    full, idle = worker("a", 3), worker("")
    chosen, entry = take(queue_of("aaa"), [idle], [full, idle])
    assert chosen is idle and entry.key == ("a", "0")


def test_nobody_is_passed_over_for_ever():
    queue, taken, a = queue_of("x" + "a" * 2 * WINDOW), "", worker("a")
    while "x" not in taken:
        taken += take(queue, [a], [a])[1].key[0]
        queue.append(Entry(("a", "new"), {}))
    assert len(taken) == WINDOW + 1


def test_a_suspect_is_neither_passed_over_nor_picked_out():
    a, b = worker("a"), worker("b")
    queue = queue_of("aba")
    queue[0].deaths = 1
    assert take(queue, [b], [a, b])[1].key[0] == "a"
    queue = queue_of("ab")
    queue[1].deaths = 1
    assert take(queue, [b], [a, b])[1].key[0] == "a"
