"""Which load when. A run is one cycle of phases after another, all cycles alike but for their random numbers, so that
the memory at one point of a cycle can be compared with that at the same point of any other."""

from __future__ import annotations

import dataclasses
import random

TICK_S = 0.5  # the load of so long is sent at once


@dataclasses.dataclass(frozen=True)
class Phase:
    name: str
    rate: float  # operations a second on each server


@dataclasses.dataclass(frozen=True)
class Tick:
    """A piece of load: `count` operations of a phase, drawn from `rng`. `first`: it is the first one of its phase."""

    number: int
    cycle: int
    phase: Phase
    first: bool
    count: int
    rng: random.Random


class Schedule:
    """The ticks of a run. What a tick asks for follows from the seed and its number alone, however late it comes."""

    def __init__(self, program: str, phases, cycle_s: float, seed: int):
        self.program, self.phases, self.seed = program, tuple(phases), seed
        self.ticks_of_phase = round(cycle_s / TICK_S / len(self.phases))
        if self.ticks_of_phase < 1:
            raise ValueError(f"a cycle of {cycle_s} s has no room for {len(self.phases)} phases")

    @property
    def cycle_s(self) -> float:
        return self.ticks_of_phase * len(self.phases) * TICK_S

    def tick(self, number: int) -> Tick:
        phases_before, place = divmod(number, self.ticks_of_phase)
        cycle, index = divmod(phases_before, len(self.phases))
        phase = self.phases[index]
        # Rates that are no whole number a tick come out right over a phase.
        each = phase.rate * TICK_S
        count = int((place + 1) * each + 1e-9) - int(place * each + 1e-9)
        return Tick(number, cycle, phase, place == 0, count, random.Random(f"{self.seed}-{self.program}-{number}"))

    def at(self, seconds: float) -> tuple[int, str]:
        """(cycle, name of the phase) at this time of the run."""
        tick = self.tick(int(seconds / TICK_S))
        return tick.cycle, tick.phase.name


def skewed(rng: random.Random, low: int, high: int) -> int:
    """A size from low to high, each doubling as likely as any other: most are small."""
    return int(low * (high / low) ** rng.random())
