"""The sentences of an analysis: the terminal, the HTML report and the README say the same ones."""

from __future__ import annotations

import collections

from spanalloc_bench import provenance, units
from spanalloc_bench.analyse import (
    APART_S, LOSS, MEMORY, METRIC, MIN_ROUNDS, START_UP_KIB, TIE, TIME, UNDECIDED, WIN,
)


def commit(meta, digits=40) -> str:
    """The commits that a record names, each followed by "with changes" where the tree differed from it, and what the
    record says of them."""
    said = dict.fromkeys(f"{source['commit'][:digits]}{' with changes' if source.get('dirty') else ''}"
                         for source, _ in provenance.sources(meta))
    return ", ".join(said) + (f" ({provenance.note(meta)})" if said and provenance.note(meta) else "")


def _case_words(found) -> str:
    """How many cases the product ran in: page managers have others."""
    product = next(iter(found.ours()), None)
    count = len(found.run_by(product) if product else found.suite)
    return f"{count} case{'s' * (count != 1)}"


def overview(found) -> list[str]:
    """What stands beside the title: machine, rounds, cases, commit."""
    meta = found.meta
    machine = meta.get("machine") or {}
    cores = machine.get("cores")
    said = [f"{machine.get('processor') or machine.get('cpu') or ''}{f', {cores} cores' if cores else ''}".strip(", ")]
    said += [f"{found.rounds} round{'s' * (found.rounds != 1)}", _case_words(found)]
    if commit(meta):
        said.append(f"commit {commit(meta, 10)}")
    return [text for text in said if text]


def _by_metric(found, mine) -> list[str]:
    """The cases that `mine` ran in and that are judged by another number than their time."""
    return [case for case in found.run_by(mine) if found.cases[case].judged_by == METRIC]


def memory_leaves_out(found, mine) -> str:
    """Which of the cases that `mine` ran in the comparison of memory leaves out, and what these say; nothing where
    there are none."""
    said, start_up, by_metric = [], len(found.run_by(mine, found.start_up)), len(_by_metric(found, mine))
    if start_up:
        scores = [(other, found.score(mine, other, MEMORY, start_up=True)) for other in found.opponents(mine)]
        means = ", ".join(f"{other} {units.ratio(score.ratio)}" for other, score in scores if score.ratio is not None)
        said.append(f"{start_up} case{'s' * (start_up > 1)} that hold less than {units.kib(START_UP_KIB)}, which "
                    f"compare what a process has at its start ({mine} / each there: {means or 'nothing to compare'})")
    if by_metric:
        said.append(f"{by_metric} that {'is' if by_metric == 1 else 'are'} judged by another number than time")
    return f"Memory leaves out {' and '.join(said)}." if said else ""


def other_numbers(found, mine) -> str:
    """One sentence: which cases are judged by another number than time, and how `mine` stands to each of the rivals
    there; nothing where there are none."""
    cases = _by_metric(found, mine)
    if not cases:
        return ""
    numbers = collections.Counter(found.cases[case].metric for case in cases)
    numbers = ", ".join(f"{count} by {metric}" for metric, count in numbers.items())
    scores = [(other, found.score(mine, other, METRIC)) for other in found.rivals()]
    tallies = ", ".join(f"{score.tally} against {other}" for other, score in scores
                        if score.wins + score.ties + score.losses)
    return (f"In the {len(cases)} case{'s' * (len(cases) > 1)} judged by another number than time ({numbers}), "
            + (f"{mine} wins/ties/loses {tallies}." if tallies else f"{mine} has no verdicts."))


def too_few_rounds(found) -> str:
    """A sentence where no verdict is possible, else nothing."""
    if found.rounds >= MIN_ROUNDS:
        return ""
    return f"{found.rounds} of the {MIN_ROUNDS} rounds that a verdict takes: ratios only, no wins, ties or losses."


def measured_apart(found, mine) -> str:
    """A sentence where runs that are compared lie too far apart, else nothing."""
    def count_of(other):
        time, other_number, memory = (found.score(mine, other, measure).apart for measure in (TIME, METRIC, MEMORY))
        return max(time + other_number, memory)

    counts = {other: count_of(other) for other in found.opponents(mine)}
    parts = [f"{other} in {count} case{'s' * (count > 1)}" for other, count in counts.items() if count]
    if not parts:
        return ""
    return (f"Run more than {APART_S / 60:.0f} minutes before or after {mine} in the same round: {', '.join(parts)}. "
            "There are ratios there, but no verdicts.")


_PLACES = {WIN: "ahead of", TIE: "level with", LOSS: "behind"}


def headline(found, mine, measure) -> str:
    """One sentence: whom `mine` is ahead of, level with, and behind, by the geometric means and their intervals."""
    places = {verdict: [] for verdict in (*_PLACES, UNDECIDED)}
    for other in found.rivals():
        score = found.score(mine, other, measure)
        if score.ratio is not None:
            interval = "" if score.low is None else f", {units.change(score.low)} to {units.change(score.high)}"
            places[score.verdict].append((score.ratio, f"{other} ({units.change(score.ratio)}{interval})"))
    texts = {verdict: ", ".join(text for _, text in sorted(names)) for verdict, names in places.items() if names}
    undecided = texts.pop(UNDECIDED, "")
    said = [f"{mine} is " + "; ".join(f"{_PLACES[verdict]} {text}" for verdict, text in texts.items())] if texts else []
    if undecided:
        said.append(f"{mine} is not yet told from {undecided}")
    return f"In {measure}, {'; '.join(said) or f'{mine} has nothing to compare with'}."
