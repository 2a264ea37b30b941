"""The figures of the benchmarks, against brute force and against numbers worked out by hand."""

import itertools
import math
from fractions import Fraction

import pytest

from bench.channels.compare import compare
from bench.channels.contamination import Golds, tokens
from bench.channels.metrics import bootstrap, fast_p, geometric_mean, pass_at_k, sign_test
from bench.channels.scores import Outcome, kind_of, score, tables, taxonomy


@pytest.mark.parametrize(("n", "c", "k"), [(5, 2, 1), (5, 2, 3), (6, 1, 2), (4, 0, 2), (4, 4, 1), (5, 3, 3)])
def test_pass_at_k_is_the_share_of_draws_with_a_right_one(n, c, k):
    draws = list(itertools.combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, draws)) / len(draws))


@pytest.mark.parametrize(("n", "c", "k"), [(10**6, 1, 1), (10**6, 3, 1000), (200, 100, 100), (10**5, 2, 7)])
def test_pass_at_k_is_stable(n, c, k):
    exact = (
        1 - math.prod(Fraction(n - c - i, n - i) for i in range(k))
        if k <= 100
        else 1 - math.prod(Fraction(n - k - i, n - i) for i in range(c))
    )
    assert pass_at_k(n, c, k) == pytest.approx(float(exact), rel=1e-12)


@pytest.mark.parametrize(("n", "c", "k"), [(3, 4, 1), (3, -1, 1), (3, 1, 0), (3, 1, 4)])
def test_pass_at_k_refuses_what_makes_no_sense(n, c, k):
    with pytest.raises(ValueError, match="must hold"):
        pass_at_k(n, c, k)


def test_fast_p_is_strict_and_counts_wrong_samples():
    speedups = [0.0, 1.0, 1.5, 2.5]
    assert [fast_p(speedups, p) for p in (0, 1, 1.5, 2)] == [0.75, 0.5, 0.25, 0.25]
    assert fast_p([], 1) is None
    assert fast_p([math.nan, 0.0], 0) == 0.5
    assert fast_p([math.nan, 0.0], 1) is None
    assert fast_p([None, 2.0], 1) == 1.0


def test_geometric_mean():
    assert geometric_mean([0.5, 2.0, 4.0]) == pytest.approx(4 ** (1 / 3))
    assert geometric_mean([]) is None
    with pytest.raises(ValueError, match="positive"):
        geometric_mean([1.0, 0.0])


def test_bootstrap_covers_and_repeats():
    values = [0.0] * 30 + [1.0] * 70
    low, high = bootstrap(values)
    assert bootstrap(values) == [low, high]
    assert low == pytest.approx(0.7 - 1.96 * 0.0458, abs=0.02) and high == pytest.approx(
        0.7 + 1.96 * 0.0458, abs=0.02
    )
    assert bootstrap([1.0]) is None


def test_sign_test_against_the_binomial():
    assert sign_test(0, 0) == sign_test(3, 3) == 1.0
    assert sign_test(9, 1) == pytest.approx(2 * (1 + 10) / 1024)
    assert sign_test(1, 9) == sign_test(9, 1)
    assert 0 < sign_test(1200, 800) < 1e-15


def outcomes():
    return [
        Outcome("1/1", "correct", compiled=True, loose=True, speedup=2.0),
        Outcome("1/1", "wrong_value", "judge", "3 of 9 differ", True, True),
        Outcome("1/2", "correct", compiled=True, loose=True, speedup=0.5),
        Outcome("1/2", "correct", compiled=True, loose=True, speedup=0.5),
        Outcome("2/1", "compile_error", "compile", "line 3: no 'x'"),
        Outcome("2/1", "unsupported", "record", "line 7: no 'y'"),
    ]


def test_score_weighs_problems_alike():
    s = score(outcomes(), [1, 2, 5])
    assert (s["problems"], s["samples"], s["not_judged"]) == (3, 6, 1)
    assert s["correct"]["value"] == pytest.approx((0.5 + 1 + 0) / 3)
    assert s["loose"]["value"] == pytest.approx(2 / 3)
    assert {k: r["value"] for k, r in s["pass_at_k"].items()} == {
        "1": pytest.approx(0.5),
        "2": pytest.approx(2 / 3),
    }
    assert s["fast_p"]["1"]["value"] == pytest.approx(0.5 / 3)
    assert s["fast_p"]["0"]["value"] == s["correct"]["value"]
    assert s["speedup"]["value"] == pytest.approx(1.0)  # 2x on one problem, 0.5x on another
    assert s["correct"]["low"] <= s["correct"]["value"] <= s["correct"]["high"]
    assert score([], [1])["correct"] is None


def test_what_the_task_itself_can_not_do_is_not_the_candidates():
    task = Outcome("1/1", "memory_limit", "task", "the task needs more memory")
    s = score([task, Outcome("1/1", "memory_limit", "run", "it used more", compiled=True)], [1])
    assert s["not_judged"] == 1 and s["statuses"] == {"memory_limit (task)": 1, "memory_limit": 1}
    assert score([task], [1])["correct"]["value"] == 0.0  # no machine flatters a model


def test_scores_without_a_clock_claim_no_speed():
    s = score([Outcome("1/1", "correct", compiled=True)], [1])
    assert s["fast_p"]["0"]["value"] == 1.0
    assert s["fast_p"]["1"] is None and s["speedup"] is None


def test_tables_leave_weak_problems_out_and_say_why_others_failed():
    found = tables({"strict": outcomes()}, lambda name: f"level {name[0]}", {"1/2": "zeros pass"}, [1])[
        "strict"
    ]
    assert list(found) == ["level 1", "level 2", "all"]
    assert found["level 1"]["all"]["problems"] == 2 and found["level 1"]["fair"]["problems"] == 1
    failures = taxonomy(outcomes())
    assert sorted(f["status"] for f in failures) == ["compile_error", "unsupported", "wrong_value"]
    assert all(f["share"] == pytest.approx(1 / 6) for f in failures)
    assert (
        kind_of("line 3: no 'x' in 12 (line 3: x)")
        == kind_of("line 9: no 'abc' in 7 (line 9: abc)")
        == "no '...' in N"
    )


def results(correct: dict[str, list[bool]], weak: str = "") -> dict:
    samples = [
        {
            "problem": p,
            "sample": i,
            "weak": "zeros" if p == weak else None,
            "verdicts": {
                "strict": {"status": "correct" if ok else "wrong_value", "speedup": 2.0 if ok else None}
            },
        }
        for p, oks in correct.items()
        for i, ok in enumerate(oks)
    ]
    return {"benchmark": "kernelbench", "samples": samples, "scores": {"strict": {}}}


def test_compare_pairs_problems():
    a = results({"1/1": [True, False], "1/2": [False, False], "1/3": [True, True], "1/9": [True]})
    b = results({"1/1": [True, True], "1/2": [True, False], "1/3": [True, True], "1/8": [True]}, weak="1/2")
    found = compare(a, b, "strict")
    assert (found["all"]["problems"], found["all"]["b_better"], found["all"]["a_better"]) == (3, 2, 0)
    assert found["all"]["difference"] == pytest.approx(1 / 3)
    assert found["all"]["p"] == sign_test(2, 0)
    assert found["fair"]["problems"] == 2
    assert found["changed"] == {"1/1": [0.5, 1.0], "1/2": [0.0, 0.5]}
    assert (found["only_in_a"], found["only_in_b"]) == (1, 1)
    assert found["all"]["speed_ratio"] == pytest.approx(1.0)


KERNEL = '''
@triton.jit
def {name}({x}, {y}, n, BLOCK: tl.constexpr):
    """{doc}"""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # {doc}
    value = tl.load({x} + at, mask=at < n, other=0.0)
    tl.store({y} + at, tl.exp(value) / (1 + tl.exp(value)) + {constant}, mask=at < n)
'''


def test_contamination_survives_renaming_and_not_another_kernel():
    gold = KERNEL.format(name="sigmoid", x="x_ptr", y="y_ptr", doc="Sigmoid.", constant="0.125")
    renamed = KERNEL.format(name="f", x="src", y="dst", doc="quite another text", constant="0.125").replace(
        "    ", "  "
    )
    other = "@triton.jit\ndef g(a, b, n):\n    i = tl.program_id(0)\n    tl.store(b + i, tl.sum(tl.load(a + i * 4 + tl.arange(0, 4)), axis=0) * 3)\n"
    assert tokens(gold) == tokens(renamed)
    index = Golds({"sigmoid": gold})
    assert index.contained(f"import triton\n{renamed}")["sigmoid"] == 1.0
    assert index.contained(other).get("sigmoid", 0.0) < 0.2
    assert Golds({"a": gold, "b": other}).contained(other) == {"b": 1.0}
