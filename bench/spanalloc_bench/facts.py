"""What a report has to know of cases and contenders: from meta.json, so that it needs neither catalogue nor library."""

from __future__ import annotations

import dataclasses
import re

from spanalloc_bench.model import Family, Kind
from spanalloc_cli import libraries

FLOOR, PRODUCT = "bump", "standard"
TIME, METRIC = "time", "metric"  # what a case is judged by
_TIME_NAMES = re.compile(r"(^|_)(s|ms|us|ns|per_s|per_second)$")
_TAIL_NAMES = re.compile(r"(^|_)(p\d+|max|worst)_")


@dataclasses.dataclass(frozen=True)
class CaseFacts:
    id: str
    group: str
    title: str
    source: str = ""
    threads: int = 1
    metric: str = "time"
    better: str = "lower"
    family: str = Family.WORKLOAD.value
    parameters: tuple[tuple[str, str], ...] = ()
    full: bool = True   # part of the full suite
    quick: bool = False

    @property
    def judged_by(self) -> str:
        """TIME where the case's metric is one, else METRIC: a count, a share or the tail of a latency is in no mean of
        times."""
        timed = _TIME_NAMES.search(self.metric) and not _TAIL_NAMES.search(self.metric)
        return TIME if self.metric == "time" or timed else METRIC

    @property
    def series(self) -> str:
        """The same for cases that differ in nothing but their threads."""
        return re.sub(r"\.t\d+(?=$|\.)", "", self.id)


@dataclasses.dataclass(frozen=True)
class AllocatorFacts:
    name: str
    kind: Kind
    path: str = ""
    version: str = ""
    sha256: str = ""
    environment: tuple[tuple[str, str], ...] = ()
    missing: str = ""

    @property
    def ours(self) -> bool:
        return self.kind in (Kind.OURS, Kind.ABLATION)


def of_cases(samples, meta) -> dict[str, CaseFacts]:
    """Cases with samples: in the order of meta.json, then those that it does not know."""
    known, present = meta.get("cases", {}), list(dict.fromkeys(s.case for s in samples))
    order = [case for case in known if case in set(present)] + [case for case in present if case not in known]
    names = {field.name for field in dataclasses.fields(CaseFacts)}
    facts = {}
    for case in order:
        given = {key: value for key, value in known.get(case, {}).items() if key in names and value is not None}
        given["parameters"] = tuple(dict(given.get("parameters", {})).items())
        given = {"group": case.split(".")[0], "title": case, **given, "id": case}
        facts[case] = CaseFacts(**given)
    return facts


def _guessed_kind(name) -> Kind:
    """For a folder without meta.json."""
    fixed = {**dict.fromkeys(libraries.LIBRARIES, Kind.ABLATION), **dict.fromkeys(libraries.SHIPPED_CONFIGS, Kind.OURS),
             "glibc": Kind.SYSTEM, FLOOR: Kind.BASELINE}
    variant = name.startswith(tuple(f"{config}-" for config in libraries.SHIPPED_CONFIGS))
    return fixed.get(name, Kind.ABLATION if variant else Kind.PEER)


def of_allocators(samples, meta) -> dict[str, AllocatorFacts]:
    facts = {}
    for given in meta.get("allocators", []):
        environment = given.get("environment") or {}
        facts[given["name"]] = AllocatorFacts(
            given["name"], Kind(given.get("kind") or _guessed_kind(given["name"]).value), given.get("path") or "",
            given.get("version") or "", given.get("sha256") or "", tuple(dict(environment).items()),
            given.get("missing") or "",
        )
    for name in dict.fromkeys(s.allocator for s in samples):
        facts.setdefault(name, AllocatorFacts(name, _guessed_kind(name)))
    order = (Kind.OURS, Kind.ABLATION, Kind.SYSTEM, Kind.PEER, Kind.GIVEN, Kind.BASELINE, Kind.PAGES)
    return dict(sorted(facts.items(), key=lambda item: (item[0] != PRODUCT, order.index(item[1].kind))))
