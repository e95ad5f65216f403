import keras
import numpy as np
import pytest

from zoo.layers.initializers import fork

initializers = keras.initializers


def draw(initializer):
    return np.array(initializer((20, 20), "float32"))


@pytest.mark.parametrize("seed", [None, 0, 7])
def test_fork_draws_other_values_of_the_same_kind(seed):
    original = initializers.TruncatedNormal(stddev=0.3, seed=seed)
    one, two = fork(original, "one"), fork(original, "two")
    assert type(one) is type(original)
    assert one.stddev == original.stddev
    draws = [draw(each) for each in (original, one, two)]
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert abs(np.corrcoef(draws[i].ravel(), draws[j].ravel())[0, 1]) < 0.3


def test_fork_of_a_seed_is_repeatable():
    seeded = initializers.HeNormal(seed=5)
    assert np.array_equal(draw(fork(seeded, "a")), draw(fork(seeded, "a")))
    again = initializers.get(initializers.serialize(fork(seeded, "a")))
    assert np.array_equal(draw(again), draw(fork(seeded, "a")))


def test_fork_without_a_seed_follows_the_global_one():
    draws = []
    for _ in range(2):
        keras.utils.set_random_seed(1)
        shared = initializers.HeNormal()
        draws.append([draw(fork(shared, "a")), draw(fork(shared, "a"))])
    assert np.array_equal(draws[0], draws[1])
    assert not np.array_equal(draws[0][0], draws[0][1])


def test_fork_leaves_alone_what_has_no_seed_to_share():
    def plain(shape, dtype=None):
        return keras.ops.ones(shape, dtype)

    generator = keras.random.SeedGenerator(1)
    moving = initializers.HeNormal(seed=generator)
    for initializer in (plain, moving):
        assert fork(initializer, "a") is initializer
    assert np.all(draw(fork(initializers.Constant(-2.0), "a")) == -2)
    assert not np.array_equal(draw(moving), draw(moving))
