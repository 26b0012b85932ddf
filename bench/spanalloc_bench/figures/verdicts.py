"""What becomes of a claim: what it lacks here, or what its judge says."""

from __future__ import annotations

from spanalloc_bench.figures.data import Data, NoData
from spanalloc_bench.figures.figure import Answer, Claim, Verdict

_NO_NUMBERS = "no numbers"
# Groups of cases that have another name on the simulated machine.
_SIMULATED_AS = {"threadtest-64": "threadtest"}


def _gap(claim: Claim, data: Data, subject) -> Verdict | None:
    """The verdict where a contender is missing that the claim needs."""
    wanted = dict.fromkeys(name for name in (subject, *claim.needs) if name)
    gone = [name for name in wanted if name in data.missing]
    if gone:
        own = [name for name in gone if data.missing[name].startswith("not built")]
        text = "; ".join(data.why_not(name) for name in own or gone)
        return Verdict(Answer.NOT_BUILT if own else Answer.CANNOT_BE_SHOWN_HERE, text)
    return None


def _place(claim: Claim, data: Data) -> Data:
    """The data to judge on: claims about variants on the runs that were made in turn with them."""
    return data.variants if data.variants and set(claim.needs) & set(data.figure.variants[1:]) else data


def _simulation(data: Data) -> str:
    """Where the figure's workload can be seen on more cores than there are."""
    from spanalloc_bench import manycore

    names = dict.fromkeys(_SIMULATED_AS.get(point.case.group, point.case.group) for point in data.points)
    known = [name for name in names if name in manycore.WORKLOADS]
    return f"; `spanalloc bench manycore --workloads {','.join(known)}` simulates them" if known else ""


def _asked(claim: Claim, data: Data, subject) -> Verdict:
    try:
        return claim.judge(data, subject)
    except NoData as error:
        return Verdict(Answer.UNDECIDED, f"{_NO_NUMBERS}: {error}")


def verdict(claim: Claim, data: Data, subject=None) -> Verdict:
    """What becomes of the claim, on its own subject or on another one."""
    subject = claim.subject if subject is None else subject
    gap = _gap(claim, data, subject)
    if gap:
        return gap
    if claim.huge_pages and data.machine.get("transparent_hugepages") == "never":
        return Verdict(Answer.CANNOT_BE_SHOWN_HERE, "this kernel's transparent huge pages are switched off")
    data = _place(claim, data)
    if data.cores < claim.cores:
        seen = _asked(claim, data, subject)
        text = f"{data.cores} cores are too few for it (judged from {claim.cores} on{_simulation(data)})"
        if not seen.evidence.startswith(_NO_NUMBERS):
            text += f"; seen with {data.cores}: {seen.answer.value}; {seen.evidence}"
        return Verdict(Answer.CANNOT_BE_SHOWN_HERE, text)
    return _asked(claim, data, subject)
