"""Does a test fail when the code is wrong? ``python -m tests.mutants [--count N] [--seed S] [ROOM...]`` breaks it and looks.

A seeded sample of mutants for each room, a line for each, the diff of each that lives, and the share that dies. What cannot be
told from the code by any caller is in ``equivalent.txt``, with the reason, and is not counted."""

from __future__ import annotations

import argparse
import difflib
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from cosmic_ray.mutating import mutate_code

from tests.mutants.bench import ROOT, Bench, Lines, Verdict
from tests.mutants.operators import OWN
from tests.mutants.population import Mutant, sample
from tests.mutants.rooms import ROOMS, Room

EQUIVALENT = Path(__file__).parent / "equivalent.txt"


def main(arguments: list[str] | None = None) -> int:
    """0 when at least ``--least`` percent of the mutants die."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=12, metavar="N", help="mutants of each room (12)")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="another seed, other mutants (1)")
    parser.add_argument("--least", type=float, default=95.0, metavar="PERCENT", help="the share that must die (95)")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="how many at a time (2)")
    parser.add_argument("--list", action="store_true", help="only show which mutants these would be")
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help=f"which ones; all of {', '.join(ROOMS)}")
    given = parser.parse_args(arguments)
    if unknown := set(given.rooms) - ROOMS.keys():
        parser.error(f"there is no room {', '.join(sorted(unknown))}; there are {', '.join(ROOMS)}")
    check_operators()
    chosen = {name: mutants_of(ROOMS[name], given.count, given.seed) for name in given.rooms or ROOMS}
    if given.list:
        for mutants in chosen.values():
            for mutant in mutants:
                print(f"{_place(mutant)}\n{difference(mutant)}")
        return 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        verdicts = {name: _room(name, mutants, Path(folder), given.jobs) for name, mutants in chosen.items()}
    return _sum_up(verdicts, given.least)


def check_operators() -> None:
    """Each operator of our own makes of its examples what they say. Raises AssertionError."""
    for name, operator in OWN.items():
        for example in operator.examples():
            made = mutate_code(example.pre_mutation_code, operator, example.occurrence)
            assert made == example.post_mutation_code, f"{name} makes {made!r} of {example.pre_mutation_code!r}"


def mutants_of(room: Room, count: int, seed: int) -> list[Mutant]:
    """A sample of the room's mutants, without those that are known to change nothing."""
    equivalent = known_equivalent()
    found = sample(_files(room), ROOT, count + len(equivalent), seed)
    return [mutant for mutant in found if _key(mutant) not in equivalent][:count]


def _files(room: Room) -> list[str]:
    for place in room.code:
        if not (ROOT / place).exists():
            raise FileNotFoundError(f"{place}, named in {__package__}.rooms, is not there")
    folders = [ROOT / place for place in room.code if not place.endswith(".py")]
    files = [place for place in room.code if place.endswith(".py")]
    return files + [str(file.relative_to(ROOT)) for folder in folders for file in sorted(folder.glob("*.py"))]


def known_equivalent() -> set[str]:
    """The keys of the mutants that nobody could tell from the code: the lines of the file that are no comments."""
    return {line for line in EQUIVALENT.read_text().splitlines() if line.strip() and not line.startswith("#")}


def _key(mutant: Mutant) -> str:
    """``path | line before | line after``: holds as long as the line is what it was."""
    before, after = _changed_lines(mutant)
    return f"{mutant.path} | {' '.join(before.split())} | {' '.join(after.split())}"


def _changed_lines(mutant: Mutant) -> tuple[str, str]:
    lines = difference(mutant).splitlines()
    return tuple("\n".join(line[1:] for line in lines if line.startswith(sign)) for sign in "-+")  # type: ignore[return-value]


def difference(mutant: Mutant) -> str:
    """The mutant as a diff without its head."""
    original = (ROOT / mutant.path).read_text()
    lines = difflib.unified_diff(original.splitlines(), mutant.text(original).splitlines(), n=0, lineterm="")
    return "\n".join(list(lines)[3:])


def _room(name: str, mutants: list[Mutant], folder: Path, jobs: int) -> list[Verdict]:
    room = ROOMS[name]
    print(f"== {name}: {len(mutants)} mutants; first its tests without any", flush=True)
    benches: SimpleQueue[Bench] = SimpleQueue()
    first = Bench(_made(folder / f"{name}-0"))
    lines = first.learn(room)
    print(f"   {lines.seconds:.0f} s", flush=True)
    for bench in [first, *(Bench(_made(folder / f"{name}-{number}")) for number in range(1, jobs))]:
        benches.put(bench)
    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(lambda mutant: _judge(mutant, room, lines, benches), mutants))


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def _judge(mutant: Mutant, room: Room, lines: Lines, benches: SimpleQueue[Bench]) -> Verdict:
    bench = benches.get()
    try:
        verdict = bench.show(mutant, room, lines)
    finally:
        benches.put(bench)
    print(f"   {_words(verdict)}", flush=True)
    return verdict


def _words(verdict: Verdict) -> str:
    if verdict.killed:
        return f"killed   {_place(verdict.mutant)} in {verdict.seconds:.0f} s by {verdict.by}"
    return (
        f"LIVES    {_place(verdict.mutant)} after {verdict.seconds:.0f} s\n{difference(verdict.mutant)}\n{_key(verdict.mutant)}"
    )


def _place(mutant: Mutant) -> str:
    return f"{mutant.path}:{mutant.line} {mutant.operator}"


def _sum_up(verdicts: dict[str, list[Verdict]], least: float) -> int:
    print("\n== room: mutants, killed, share")
    for name, each in verdicts.items():
        print(f"   {name:<14}{len(each):>4}{_killed(each):>5}{_share(each):>7.1f} %")
    every = [verdict for each in verdicts.values() for verdict in each]
    print(f"   {'all':<14}{len(every):>4}{_killed(every):>5}{_share(every):>7.1f} %; at least {least:g} % must die")
    return 0 if _share(every) >= least else 1


def _killed(verdicts: list[Verdict]) -> int:
    return sum(verdict.killed for verdict in verdicts)


def _share(verdicts: list[Verdict]) -> float:
    return 100.0 * _killed(verdicts) / len(verdicts) if verdicts else 100.0


if __name__ == "__main__":
    sys.exit(main())
