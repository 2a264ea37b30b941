"""Seeds, data order and learning rates are functions of the seed and the step, and stay what published seeds mean."""

from nanotriton.schedule import Stream, indices, learning_rate, seed_of, update_groups


def test_a_seed_and_its_streams_never_change_their_meaning():
    assert seed_of(0, Stream.SAMPLES, 0, 0, 0) == 2812239905364596842
    assert seed_of(3, Stream.HELDOUT, 0, 7, 1) == 3367036563266876323
    assert {s.name: s.value for s in Stream} == {
        "SAMPLES": 1,
        "SHUFFLED_REWARDS": 2,
        "UPDATES": 3,
        "EXAMPLES": 5,
        "SPARE_TASKS": 6,
        "HELDOUT": 10,
        "KERNELBENCH": 20,
        "TRITONBENCH": 21,
        "SEARCH": 30,
    }


def test_every_draw_has_a_seed_of_its_own():
    parts = [
        (s, stream, step, task)
        for s in range(4)
        for stream in Stream
        for step in range(9)
        for task in range(9)
    ]
    seeds = {seed_of(*part) for part in parts}
    assert len(seeds) == len(parts) and all(0 <= s < 2**63 for s in seeds)


def test_each_epoch_is_a_new_permutation_and_a_step_may_lie_in_two():
    drawn = [i for step in range(7) for i in indices(step, batch=5, examples=7, seed=1)]
    epochs = [drawn[k : k + 7] for k in range(0, 35, 7)]
    assert all(sorted(epoch) == list(range(7)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 5
    assert sorted(indices(0, batch=20, examples=7, seed=1)) == sorted(
        [*range(7)] * 2 + indices(0, 20, 7, 1)[14:]
    )


def test_each_pass_gives_every_group_to_one_update():
    lists = update_groups(7, epochs=3, updates=2, step=4, seed=0)
    assert [len(chosen) for chosen in lists] == [4, 3] * 3
    passes = [lists[k] + lists[k + 1] for k in (0, 2, 4)]
    assert all(sorted(groups) == list(range(7)) for groups in passes) and passes[0] != passes[1]
    assert update_groups(7, 3, 2, 4, 0) == lists != update_groups(7, 3, 2, 5, 0)
    assert update_groups(1, epochs=1, updates=2, step=0, seed=0) == [[0], []]


def test_the_learning_rate_ends_at_zero_or_at_its_least():
    assert learning_rate(0, 10, 1.0, warmup=0.0) == 1.0
    assert learning_rate(10, 10, 1.0, warmup=0.0) < 0.03
    assert learning_rate(10, 10, 1.0, warmup=0.0, least=0.2) == 0.2
