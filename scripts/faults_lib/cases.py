"""The registry of cases. A case is a function of a `Run` and a variant; its docstring is what `--list` prints."""

import subprocess

CASES = {}
BOTH = ("local", "reject")


def case(*variants):
    """Registers a case under its name, with `_` as `-`."""

    def register(function):
        function.variants = variants
        CASES[function.__name__.replace("_", "-")] = function
        return function

    return register


async def stressed(run, work):
    """Runs beside eight processes that use all CPU."""
    stress = subprocess.Popen(["stress", "-c", "8"], stdout=subprocess.DEVNULL)
    try:
        await work
    finally:
        stress.terminate()
        stress.wait()
