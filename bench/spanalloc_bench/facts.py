"""What a report has to know of cases and contenders: from meta.json, so that it needs neither catalogue nor library."""

from __future__ import annotations

import dataclasses

from spanalloc_bench.model import Allocator, Case, Kind
from spanalloc_cli import libraries

FLOOR, PRODUCT = "bump", "standard"
OF_CASES = ("group", "title", "source", "threads", "metric", "better", "full", "quick")  # fields that a report needs


@dataclasses.dataclass(frozen=True)
class Contender(Allocator):
    version: str = ""
    sha256: str = ""


def of_cases(samples, meta) -> dict[str, Case]:
    """Cases with samples: in the order of meta.json, then those that it does not know."""
    known, present = meta.get("cases", {}), list(dict.fromkeys(s.case for s in samples))
    facts = {}
    for case in [case for case in known if case in set(present)] + [case for case in present if case not in known]:
        given = {key: value for key, value in known.get(case, {}).items() if key in OF_CASES and value is not None}
        facts[case] = Case(id=case, **{"group": case.split(".")[0], "title": case, "full": True, **given})
    return facts


def _guessed_kind(name) -> Kind:
    """For a folder without meta.json."""
    fixed = {**dict.fromkeys(libraries.LIBRARIES, Kind.ABLATION), **dict.fromkeys(libraries.SHIPPED_CONFIGS, Kind.OURS),
             "glibc": Kind.SYSTEM, FLOOR: Kind.BASELINE}
    variant = name.startswith(tuple(f"{config}-" for config in libraries.SHIPPED_CONFIGS))
    return fixed.get(name, Kind.ABLATION if variant else Kind.PEER)


def of_allocators(samples, meta) -> dict[str, Contender]:
    facts = {}
    for given in meta.get("allocators", []):
        texts = {key: given.get(key) or "" for key in ("path", "missing", "version", "sha256")}
        facts[given["name"]] = Contender(
            name=given["name"], kind=Kind(given.get("kind") or _guessed_kind(given["name"])),
            environment=tuple((given.get("environment") or {}).items()), **texts)
    for name in dict.fromkeys(s.allocator for s in samples):
        facts.setdefault(name, Contender(name, "", _guessed_kind(name)))
    order = (Kind.OURS, Kind.ABLATION, Kind.SYSTEM, Kind.PEER, Kind.GIVEN, Kind.BASELINE, Kind.PAGES)
    return dict(sorted(facts.items(), key=lambda item: (item[0] != PRODUCT, order.index(item[1].kind))))
