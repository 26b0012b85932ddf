"""What becomes of a claim: what it lacks here, or what its judge says."""

from __future__ import annotations

import dataclasses

from spanalloc_bench import manycore_workloads as manycore
from papers.shared.figures import simulated
from papers.shared.figures.data import ONE_ROUND, Data, NoData
from papers.shared.figures.figure import Answer, Claim, Verdict

_NO_NUMBERS = "no numbers"
NOT_MEASURED = f"{Answer.NOT_MEASURED.value} in these results: they are older than this engine"  # a reason to be missing
PUBLIC_CODE = "build its public code"  # a reason to be missing: it can be had, but the suite does not fetch it


def _gap(claim: Claim, data: Data, subject) -> Verdict | None:
    """The verdict where a contender is missing that the claim needs."""
    wanted = dict.fromkeys(name for name in (subject, *claim.needs) if name)
    gone = [name for name in wanted if name in data.missing]
    for answer in (Answer.NOT_BUILT, Answer.NOT_MEASURED):
        own = [name for name in gone if data.missing[name].startswith(answer.value)]
        if own:
            return Verdict(answer, "; ".join(data.why_not(name) for name in own))
    if gone and data.cores >= claim.cores and all(PUBLIC_CODE in data.missing[name] for name in gone):
        return Verdict(Answer.NOT_MEASURED, "; ".join(map(data.why_not, gone)))
    few = f"; and {claim.cores} cores are needed" * (data.cores < claim.cores)
    return Verdict(Answer.CANNOT_BE_SHOWN_HERE, "; ".join(map(data.why_not, gone)) + few) if gone else None


def _place(claim: Claim, data: Data) -> Data:
    """The data to judge on: claims about variants on the runs that were made in turn with them."""
    return data.variants if data.variants and set(claim.needs) & set(data.figure.variants[1:]) else data


def _simulation(claim: Claim, data: Data, subject) -> str:
    """What simulates more cores than there are, where that could tell; what was simulated already and told nothing."""
    cases, names = _simulated_cases(claim, data), dict.fromkeys(name for name in (subject, *claim.needs) if name)
    if not cases or not _could_be_simulated(claim, data, subject):
        return ""
    problems = {(line["row"], line["cores"]): line[simulated.PROBLEM] for line in data.simulations
                if line["row"] in names and simulated.PROBLEM in line}
    if problems:
        return "; simulated, but not to be judged: " + "; ".join(
            f"{name} with {cores} cores: {why}" for (name, cores), why in problems.items())
    added = [name for name in names if name not in manycore.ALLOCATORS]
    options = f" --allocators {','.join(names)}" * bool(added)
    return f"; `spanalloc bench manycore --workloads {','.join(cases)}{options} --seeds {simulated.SEEDS}` simulates them: {_titles(cases)}"


def _could_be_simulated(claim: Claim, data: Data, subject) -> bool:
    """Whether a simulation of everybody has what the claim's judge asks for."""
    names = dict.fromkeys(name for name in (*data.figure.allocators, *data.figure.variants, subject, *claim.needs) if name)
    machines = simulated.data(data.figure, simulated.imagined(data.figure, names), simulated.SEEDS)
    cores = min((cores for cores in machines if cores >= claim.cores), default=None)
    return (not claim.judge.about_rounds and cores is not None
            and not _asked(claim, machines[cores], subject).evidence.startswith(_NO_NUMBERS))


def _simulated_cases(claim: Claim, data: Data) -> list[str]:
    """The simulated workloads that stand for the claim's."""
    found = (simulated.of_case(point.case) for point in data.at(series=claim.series))
    return list(dict.fromkeys(simulation.workload for simulation in found if simulation))


def _titles(cases) -> str:
    return "; ".join(manycore.WORKLOADS[name].title for name in cases)


def _asked(claim: Claim, data: Data, subject) -> Verdict:
    try:
        return claim.judge(data, subject)
    except NoData as error:
        return Verdict(Answer.UNDECIDED, f"{_NO_NUMBERS}: {error}")


def _on_fewer_cores(claim: Claim, data: Data, subject) -> Verdict:
    """On a machine with fewer cores than the claim needs: it can be refuted at most."""
    if claim.each_count:
        found = _asked(claim, data.up_to_cores(), subject)
        if found.answer is Answer.DOES_NOT_HOLD:
            return Verdict(found.answer, f"{data.cores} cores are enough against it: {found.evidence}")
    if found := _verdict_of_simulations(claim, data, subject):
        return found
    text = f"{data.cores} cores are too few for it (judged from {claim.cores} on{_simulation(claim, data, subject)})"
    return Verdict(Answer.CANNOT_BE_SHOWN_HERE, text + _seen_here(claim, data, subject) + _simulated(claim, data, subject))


def _verdict_of_simulations(claim: Claim, data: Data, subject) -> Verdict | None:
    """On the smallest simulated machine that has the cores, by the contenders that ran there with so many seeds."""
    if claim.judge.about_rounds:
        return None
    machines = simulated.data(data.figure, data.simulations, simulated.SEEDS)
    cores = min((cores for cores in machines if cores >= claim.cores), default=None)
    if cores is None:
        return None
    seen = _asked(claim, machines[cores], subject)
    if seen.evidence.startswith(_NO_NUMBERS):
        return None
    return dataclasses.replace(seen, answer=Answer.SIMULATED,
                               text=f"{seen.answer.value} on simulated machines of up to {cores} cores, a core a thread, "
                                    f"{simulated.SEEDS} seeds; {seen.text}; {_titles(_simulated_cases(claim, data))}"
                                    + _simulated(claim, data, subject, above=cores) + _seen_here(claim, data, subject))


def _seen_here(claim: Claim, data: Data, subject) -> str:
    """What this machine's fewer cores say of the claim; empty where they have nothing that it asks for."""
    seen = _asked(claim, data, subject)
    return "" if seen.evidence.startswith(_NO_NUMBERS) else f"; seen with {data.cores}: {seen.answer.value}; {seen.evidence}"


def _simulated(claim: Claim, data: Data, subject, above=0) -> str:
    """What the claim's numbers are on simulated machines of more than so many cores. (Restartable sequences are not there: ours take their locks.)"""
    if claim.judge.about_rounds:
        return ""
    texts, smaller = [], simulated.data(data.figure, data.simulations, own=False)
    for cores, part in simulated.data(data.figure, data.simulations).items():
        seen = _asked(claim, part, subject)
        says_more = seen.text != _asked(claim, smaller[cores], subject).text  # than the machines that it has the same points of
        if cores > above and says_more and not seen.evidence.startswith(_NO_NUMBERS):
            alone = _at_the_most(claim, part, subject)
            texts.append(f"{cores} cores: {seen.text}" + (f"; the last alone: {alone.text}" if alone else ""))
    return f"; simulated (ours by its locks): {'; '.join(texts)}".replace(ONE_ROUND, "") if texts else ""


def _at_the_most(claim: Claim, data: Data, subject) -> Verdict | None:
    """What a judge of a mean over all thread counts says at the most of them alone; None where there is no such mean."""
    counts = data.numbers()
    if not claim.judge.over_all or len(counts) < 2:
        return None
    found = _asked(claim, data.only(counts[-1]), subject)
    return None if found.evidence.startswith(_NO_NUMBERS) else found


def rule(claim: Claim) -> str:
    """What the verdict goes by; empty where nothing could decide it."""
    found = claim.judge.rule(claim.subject or "it")
    return found + f"; from {claim.cores} cores on" * (bool(found) and claim.cores > 1)


def verdict(claim: Claim, data: Data, subject=None) -> Verdict:
    """What becomes of the claim, on its own subject or on another one."""
    subject = claim.subject if subject is None else subject
    gap = _gap(claim, data, subject)
    if gap and gap.answer is Answer.NOT_MEASURED and claim.judge.without_numbers:
        gap = None  # measuring would not change what it says
    if gap:
        return gap
    if claim.huge_pages and data.machine.get("transparent_hugepages") == "never":
        return Verdict(Answer.CANNOT_BE_SHOWN_HERE, "this kernel's transparent huge pages are switched off")
    data = _place(claim, data)
    if data.cores < claim.cores:
        return _on_fewer_cores(claim, data, subject)
    return _of_both_casts(claim, data, subject) if claim.played_by else _asked(claim, data, subject)


def _of_both_casts(claim: Claim, data: Data, subject) -> Verdict:
    """Where it is not known which of two contenders the paper ran, what is so with either."""
    name, other = claim.played_by
    found = _asked(claim, data, subject)
    if other not in data.measured():
        return found
    also = _asked(claim, data.cast(name, other), subject)
    both = found.answer if found.answer is also.answer else Answer.UNDECIDED
    return dataclasses.replace(found, answer=both, text=f"with {name} itself: {found.answer.value}, {found.text}; with {other} "
                                                        f"in its place: {also.answer.value}, {also.text}")
