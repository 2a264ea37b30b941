"""Which candidate a worker gets next."""

from collections import deque

from nanotriton.executor.queue import WINDOW, Entry, take


def queue_of(tasks: str) -> deque[Entry]:
    return deque(Entry((task, str(i)), {}) for i, task in enumerate(tasks))


def names(queue) -> str:
    return "".join(e.key[0] for e in queue)


def test_its_own_task_then_a_new_one_then_whoever_is_first():
    queue = queue_of("abcabc")
    assert take(queue, {"b"}, {"a", "b"}).key == ("b", "1") and names(queue) == "acabc"
    assert take(queue, {"d"}, {"a", "b", "d"}).key == ("c", "2") and names(queue) == "aabc"
    assert take(queue, {"d"}, {"a", "b", "c", "d"}).key == ("a", "0") and names(queue) == "abc"


def test_nobody_is_passed_over_for_ever():
    queue, taken = queue_of("x" + "a" * 200), ""
    while "x" not in taken:
        taken += take(queue, {"a"}, {"a"}).key[0]
        queue.append(Entry(("a", "new"), {}))
    assert len(taken) == WINDOW + 1


def test_a_suspect_is_neither_passed_over_nor_picked_out():
    queue = queue_of("aba")
    queue[0].deaths = 1
    assert take(queue, {"b"}, {"b"}).key[0] == "a"
    queue = queue_of("ab")
    queue[1].deaths = 1
    assert take(queue, {"b"}, {"b"}).key[0] == "a"
