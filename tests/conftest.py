import keras
import pytest

pytest.register_assert_rewrite("helpers")


@pytest.fixture(autouse=True)
def seed():
    """Every test starts with the same draws."""
    keras.utils.set_random_seed(0)


@pytest.fixture
def policy():
    """Sets the global dtype policy for one test."""
    before = keras.config.dtype_policy()
    yield keras.config.set_dtype_policy
    keras.config.set_dtype_policy(before)
