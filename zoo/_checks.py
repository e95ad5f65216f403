"""Checks of arguments: one sentence with the argument, the rule and what came."""

import difflib


def known(what, value, names):
    """`value` if it is one of `names`; else ValueError with the nearest first."""
    names = list(names)
    if value in names:
        return value
    near = difflib.get_close_matches(str(value), names, len(names), 0.0)
    raise ValueError(
        f"`{what}` must be one of {', '.join(near or names)}. "
        f"Received: {what}={value!r}"
    )


def check_int(name, value, minimum=1):
    """ValueError unless `value` is an integer of at least `minimum`."""
    if type(value) is not int or value < minimum:
        raise ValueError(
            f"`{name}` must be an integer of at least {minimum}. "
            f"Received: {name}={value!r}"
        )
