"""Which changes of a module no test notices: `make mutants ARGS="MODULE --count 9"`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.proof.mutation.copies import Copy, Outcome
from tests.proof.mutation.mutants import files_about, module_path, try_mutants


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit code, 1 if a mutant survived."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("module", help="rocketcompat.store.flush, or the path of its file")
    parser.add_argument("tests", nargs="*", help="by default those with its name or that import it")
    parser.add_argument("--count", type=int, help="so many mutants, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="which ones")
    parser.add_argument("--seconds", type=float, default=1800.0, help="at most so long")
    asked = parser.parse_args(arguments)
    outcomes: Counter[str] = Counter()
    survivors = 0
    try:
        module = module_path(asked.module)
        tests = asked.tests or files_about(module)
        if not tests:
            raise ValueError(f"{module}: no test imports it; name some")
        print(f"{module}: {' '.join(tests)}", flush=True)
        with tempfile.TemporaryDirectory() as place, Copy(Path(place)) as copy:
            for tried in try_mutants(
                copy, module, tests, count=asked.count, seed=asked.seed, seconds=asked.seconds
            ):
                outcome = "explained" if tried.reason else tried.outcome.name.lower()
                outcomes["survived" if tried.survived else outcome] += 1
                if tried.survived:
                    survivors += 1
                    print(f"\n{module}:{tried.mutant.line} {tried.mutant.operator}")
                    print(*tried.mutant.change, sep="\n", flush=True)
    except ValueError as error:
        print(f"mutants: {error}", file=sys.stderr)
        return 2
    names = {Outcome.FAILED: "noticed", Outcome.TOOK_TOO_LONG: "hung", Outcome.BROKEN: "broken"}
    for outcome, name in names.items():
        outcomes[name] += outcomes.pop(outcome.name.lower(), 0)
    print("\n" + ", ".join(f"{number} {name}" for name, number in outcomes.items() if number))
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
