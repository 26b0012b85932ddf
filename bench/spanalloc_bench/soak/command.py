"""The work of `spanalloc bench soak`: what to run, what is there already, the run, the report."""

from __future__ import annotations

import os
import re
import signal
import time

from spanalloc_bench import allocators, build, machine, tree
from spanalloc_bench.execute import RunFailed
from spanalloc_bench.soak import programs, records
from spanalloc_bench.soak.phases import TICK_S
from spanalloc_cli import libraries

PHASES = 8  # of every program, so that their cycles are equally long
ALLOCATORS = ("standard", "glibc", "jemalloc", "mimalloc")


def newest(places, name):
    """The contender of this name; of a family that `spanalloc bench peers` has built (mimalloc), its newest release."""
    built = [entry["name"] for entry in libraries.built_peers() if entry["family"] == name]
    if not built:
        return allocators.named(places, name)
    return allocators.named(places, max(built, key=lambda text: [int(n) for n in re.findall(r"\d+", text)]))


def chosen_programs(names, say) -> list[str]:
    wanted = [name.strip() for name in names.split(",")] if names else list(programs.PROGRAMS)
    for name in wanted:
        if name not in programs.PROGRAMS:
            raise allocators.BadChoice(f"--programs {name}: there are {', '.join(programs.PROGRAMS)}")
    found = []
    for name in dict.fromkeys(wanted):
        lacking = programs.missing(name)
        if lacking:
            say(f"{name} is left out: {lacking}")
        else:
            found.append(name)
    if not found:
        raise allocators.BadChoice("none of these programs is here")
    return found


def settings(chosen, minutes, cycle_s, seed) -> dict:
    """What must be the same for curves to be drawn beside each other."""
    return {
        "minutes": minutes, "cycle_s": cycle_s, "seed": seed,
        "allocators": {allocator.name: machine.facts_of(allocator) for allocator in chosen},
    }


def _differs(old, new) -> str:
    """In what the settings of a folder differ from those asked for; empty where they do not."""
    for name, flag in (("minutes", "--minutes"), ("cycle_s", "--cycle"), ("seed", "--seed")):
        if old[name] != new[name]:
            return f"{flag} {old[name]:g}"
    if list(old["allocators"]) != list(new["allocators"]):
        return f"--allocators {','.join(old['allocators'])}"
    for name, known in old["allocators"].items():
        if known["sha256"] != new["allocators"][name]["sha256"]:
            return f"another build of {name}"
    return ""


def left_to_do(folder, wanted, asked, again) -> list[str]:
    """The programs that the folder has no finished run of. BadChoice where it was made under other settings."""
    if again or not folder.meta:
        folder.meta = {"settings": asked, "programs": {}}
    difference = _differs(folder.meta["settings"], asked)
    if difference:
        raise allocators.BadChoice(f"{folder.path} holds a soak with {difference}: choose another --out, or --again to "
                                   "replace it")
    return [name for name in wanted if name not in folder.meta["programs"]]


def measure(places, folder, names, chosen, asked, say):
    """Runs what is left and notes it in the folder."""
    from spanalloc_bench.soak import run

    folder.keep_only(folder.meta["programs"])
    folder.meta.update(machine=machine.describe(), source=machine.git_commit(tree.SOURCE))
    folder.write_meta()
    seconds = asked["minutes"] * 60
    say(f"{', '.join(names)} under {', '.join(allocator.name for allocator in chosen)}: {asked['minutes']:g} minutes")
    started = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
    try:
        ended = run.soak(places, names, chosen, seconds, asked["cycle_s"], asked["seed"], folder.append)
    except RunFailed as failure:
        raise allocators.BadChoice(str(failure)) from None
    for name, facts in ended.items():
        for allocator, why in facts["problems"].items():
            say(f"{name}, {allocator}: {why}")
        folder.meta["programs"][name] = {"started": started, "version": programs.version(name), **facts}
    folder.write_meta()


def command(places, *, minutes, names, allocator_names, with_, cycle_s, seed, out, again, only_report, write, say,
            console, building=False) -> bool:
    """Runs the command; False when a server ended or did not start under one of our libraries. `building`: what is not
    there is built first."""
    folder_path = os.path.abspath(out) if out else os.path.join(tree.DEFAULT_OUT + "-soak")
    # A terminal that is closed must end the servers too, unless nohup has said otherwise.
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.default_int_handler)
    whole = PHASES * TICK_S
    if cycle_s % whole:
        raise allocators.BadChoice(f"--cycle {cycle_s:g}: expected a multiple of {whole:g} seconds")
    if not only_report:
        wanted = chosen_programs(names, say)
        if building:
            needed = allocators.wanted(allocator_names, ALLOCATORS)
            build.make(places, [*build.helpers(places), *build.of_contenders(places, needed)], say)
        chosen = allocators.present(places, allocator_names, ALLOCATORS, with_, say, newest)
        asked = settings(chosen, minutes, cycle_s, seed)
        with records.Folder(folder_path) as folder:
            left = left_to_do(folder, wanted, asked, again)
            if left:
                measure(places, folder, left, chosen, asked, say)
            else:
                say(f"{folder_path} has all of it already")
    from spanalloc_bench.soak import report

    samples, meta = records.read(folder_path), records.read_meta(folder_path)
    if not samples:
        raise FileNotFoundError(f"{folder_path} holds no soak: `spanalloc bench soak` makes one")
    report.show(samples, meta, folder_path, console, say)
    if write:
        report.write_document(samples, meta, tree.SOURCE, say)
    ours = {name for name, known in meta["settings"]["allocators"].items() if known["ours"]}
    return not any(ours & set(facts["problems"]) for facts in meta["programs"].values())
