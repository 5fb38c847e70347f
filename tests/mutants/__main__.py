"""Does a test fail when the code is wrong? ``python -m tests.mutants [--count N] [--seed S] [ROOM...]`` breaks it and looks.

A seeded sample of mutants for each room, a line for each, the diff of each that lives, and the share that dies. What cannot be
told from the code by any caller is in ``equivalent.txt``, with the reason, and is not counted.

A mutant is shown to the few test files that are nearest to it. When one lives there, all tests of its room are run once, to see
which of them run what line, and it is shown to those that run its own. ``--near`` leaves that out: it takes minutes."""

from __future__ import annotations

import argparse
import difflib
import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from queue import SimpleQueue

from cosmic_ray.mutating import mutate_code

from tests.mutants import keys
from tests.mutants.bench import ROOT, Bench, Lines, Verdict
from tests.mutants.operators import OWN
from tests.mutants.population import Mutant, sample
from tests.mutants.rooms import ROOMS, Room

EQUIVALENT = Path(__file__).parent / "equivalent.txt"


def main(arguments: list[str] | None = None) -> int:
    """0 when at least ``--least`` percent of the mutants die, in each room."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=12, metavar="N", help="mutants of each room (12)")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="another seed, other mutants (1)")
    parser.add_argument("--least", type=float, default=95.0, metavar="PERCENT", help="the share that must die in each room (95)")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="how many at a time (2)")
    parser.add_argument("--near", action="store_true", help="only the tests nearby: what lives there may die elsewhere")
    parser.add_argument("--list", action="store_true", help="only show which mutants these would be")
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help=f"which ones; all of {', '.join(ROOMS)}")
    given = parser.parse_args(arguments)
    if unknown := set(given.rooms) - ROOMS.keys():
        parser.error(f"there is no room {', '.join(sorted(unknown))}; there are {', '.join(ROOMS)}")
    check_operators()
    drawn = {name: mutants_of(ROOMS[name], given.count, given.seed) for name in given.rooms or ROOMS}
    chosen = {name: mutants for name, (mutants, _) in drawn.items()}
    if given.list:
        for mutants in chosen.values():
            for mutant in mutants:
                print(f"{_place(mutant)}\n{difference(mutant)}")
        return 0
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        verdicts = _show(chosen, Path(folder), given.jobs, given.near)
    print(f"\n== {time.monotonic() - began:.0f} s")
    return _sum_up(verdicts, {name: equivalent for name, (_, equivalent) in drawn.items()}, given.least)


def check_operators() -> None:
    """Each operator of our own makes of its examples what they say. Raises AssertionError."""
    for name, operator in OWN.items():
        for example in operator.examples():
            made = mutate_code(example.pre_mutation_code, operator, example.occurrence)
            assert made == example.post_mutation_code, f"{name} makes {made!r} of {example.pre_mutation_code!r}"


def mutants_of(room: Room, count: int, seed: int) -> tuple[list[Mutant], int]:
    """A sample of the room's mutants; and how many of the sample are left out, as they are known to change nothing."""
    found, equivalent = sample(_files(room), ROOT, count, seed), set(keys.read(EQUIVALENT))
    telling = [mutant for mutant in found if _entry(mutant) not in equivalent]
    return telling, len(found) - len(telling)


def _files(room: Room) -> list[str]:
    for place in room.code:
        if not (ROOT / place).exists():
            raise FileNotFoundError(f"{place}, named in {__package__}.rooms, is not there")
    folders = [ROOT / place for place in room.code if not place.endswith(".py")]
    files = [place for place in room.code if place.endswith(".py")]
    return files + [str(file.relative_to(ROOT)) for folder in folders for file in sorted(folder.glob("*.py"))]


def _entry(mutant: Mutant) -> keys.Entry:
    original = (ROOT / mutant.path).read_text()
    return keys.entry(mutant.path, original, mutant.text(original))


@cache
def difference(mutant: Mutant) -> str:
    """The mutant as a diff without its head."""
    original = (ROOT / mutant.path).read_text()
    lines = difflib.unified_diff(original.splitlines(), mutant.text(original).splitlines(), n=0, lineterm="")
    return "\n".join(list(lines)[3:])


def _show(chosen: Mapping[str, Sequence[Mutant]], folder: Path, jobs: int, near: bool) -> dict[str, list[Verdict]]:
    """Room -> what became of its mutants, in their order."""
    every = [Bench(folder / str(number)) for number in range(jobs)]
    verdicts = _judge_all(chosen, every, lambda bench, name, mutant: bench.show_nearby(mutant, ROOMS[name].tests))
    living = {name: [one.mutant for one in each if not one.killed] for name, each in verdicts.items()}
    living = {name: mutants for name, mutants in living.items() if mutants}
    if near or not living:
        return verdicts
    lines = _learn(living, every[0], jobs)
    further = _judge_all(living, every, lambda bench, name, mutant: bench.show(mutant, ROOMS[name].tests, lines))
    later = {verdict.mutant: verdict for each in further.values() for verdict in each}
    return {name: [later.get(one.mutant, one) for one in each] for name, each in verdicts.items()}


def _judge_all(
    chosen: Mapping[str, Sequence[Mutant]], every: Sequence[Bench], show: Callable[[Bench, str, Mutant], Verdict]
) -> dict[str, list[Verdict]]:
    """``show`` for each mutant, one at a time on each bench, with a line about each."""
    benches: SimpleQueue[Bench] = SimpleQueue()
    for bench in every:
        benches.put(bench)
    total, done = sum(map(len, chosen.values())), itertools.count(1)

    def judge(name: str, mutant: Mutant) -> Verdict:
        bench = benches.get()
        try:
            verdict = show(bench, name, mutant)
        finally:
            benches.put(bench)
        print(f"[{next(done)}/{total}] {name}: {_words(verdict)}", flush=True)
        return verdict

    with ThreadPoolExecutor(len(every)) as pool:
        waiting = {name: [pool.submit(judge, name, mutant) for mutant in mutants] for name, mutants in chosen.items()}
        try:
            return {name: [one.result() for one in each] for name, each in waiting.items()}
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for bench in every:
                bench.end_all()
            raise


def _learn(names: Iterable[str], bench: Bench, jobs: int) -> Lines:
    places = sorted({place for name in names for place in ROOMS[name].tests})
    print(f"first the tests of {', '.join(places)} without any mutant", flush=True)
    began = time.monotonic()
    lines = bench.learn(places, jobs)
    print(f"{len(lines)} tests in {time.monotonic() - began:.0f} s", flush=True)
    for test in lines.failed:
        print(f"is not asked, because it failed without any mutant: {test}", flush=True)
    return lines


def _words(verdict: Verdict) -> str:
    place = f"{_place(verdict.mutant)}, {verdict.seconds:.0f} s"
    if verdict.killed:
        return f"{place}: killed by {verdict.by}"
    return f"{place}: LIVES\n{difference(verdict.mutant)}\n{_entry(verdict.mutant)}"


def _place(mutant: Mutant) -> str:
    return f"{mutant.path}:{mutant.line} {mutant.operator}"


def _sum_up(verdicts: dict[str, list[Verdict]], equivalent: dict[str, int], least: float) -> int:
    print(f"{'':<14}{'mutants':>9}{'equivalent':>12}{'killed':>8}{'share':>9}")
    for name, each in verdicts.items():
        print(_row(name, each, equivalent[name]))
    every = [verdict for each in verdicts.values() for verdict in each]
    print(f"{_row('all', every, sum(equivalent.values()))}; at least {least:g} % of each room must die")
    return 0 if all(_share(each) >= least for each in verdicts.values()) else 1


def _row(name: str, verdicts: list[Verdict], equivalent: int) -> str:
    """Those that are equivalent count among the mutants drawn, not in the share."""
    return f"{name:<14}{len(verdicts) + equivalent:>9}{equivalent:>12}{_killed(verdicts):>8}{_share(verdicts):>7.1f} %"


def _killed(verdicts: list[Verdict]) -> int:
    return sum(verdict.killed for verdict in verdicts)


def _share(verdicts: list[Verdict]) -> float:
    return 100.0 * _killed(verdicts) / len(verdicts) if verdicts else 100.0


if __name__ == "__main__":
    sys.exit(main())
