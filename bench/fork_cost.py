#!/usr/bin/env python3
"""What fork costs a process with 20 threads that rest, beside one without, under each allocator.

A table of medians, of many forks and of several processes in rotation: the time that fork takes in the parent, that until
the child, which exits at once, was waited for; the page faults of parent and child (each page that either writes to must
be copied); the same times of the quickest tenth of forks, which other work on the machine has delayed least; mappings,
KiB of page tables, and KiB of memory, which the kernel copies or marks; and the times with wait as ratios to glibc's, of
all forks and of the quickest tenth. Times are worth something on a machine that does nothing else; --counts leaves them
out.

    bench/fork_cost.py                     glibc and our libraries
    bench/fork_cost.py --mib 10 --all      each thread, the first one too, has 10 MiB; other allocators that are found, too
"""

import os
import statistics
import subprocess
import sys
import tempfile

import common

FIELDS = ("fork us", "with wait us", "parent's faults", "child's faults", "tenth: fork us", "with wait us", "mappings",
          "tables KiB", "own KiB")
TIMES = (0, 1, 4, 5)
WAITED, WAITED_TENTH = 1, 5


def main():
    parser = common.parser(__doc__)
    parser.add_argument("--threads", type=int, default=20, help="beside the one that forks (default: 20)")
    parser.add_argument("--mib", type=float, default=1, help="of live memory a thread, the first one too (default: 1)")
    parser.add_argument("--forks", type=int, default=300, help="a process (default: 300)")
    parser.add_argument("--rounds", type=int, default=7, help="processes of each kind, in rotation (default: 7)")
    parser.add_argument("--all", action="store_true", help="other allocators than glibc's and ours, too")
    parser.add_argument("--counts", action="store_true", help="no times, two rounds of 21 forks")
    options = parser.parse_args()
    if options.counts:
        options.rounds, options.forks = 2, 21

    allocators = [(name, path) for name, path, ours in common.Build(options.build).allocators()
                  if ours or name == "glibc" or options.all]
    with tempfile.TemporaryDirectory(prefix="spanalloc-fork-") as folder:
        program = os.path.join(folder, "fork")
        source = os.path.join(common.SOURCE, "bench", "fork", "fork.c")
        compiler = os.environ.get("CC", "cc")
        subprocess.run([compiler, "-O2", "-fno-builtin", "-pthread", source, "-o", program], check=True)
        read = {}
        for _ in range(options.rounds):
            for threads in (0, options.threads):
                for name, path in allocators:
                    environment = dict(os.environ)
                    if name != "glibc":
                        environment["LD_PRELOAD"] = path
                    command = [program, str(threads), str(options.mib), str(options.forks)]
                    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
                    if done.returncode != 0:
                        sys.exit(f"{' '.join(command)} under {name} failed: {done.returncode} {done.stderr}")
                    read.setdefault((threads, name), []).append([float(word) for word in done.stdout.split()])

    columns = [i for i in range(len(FIELDS)) if not options.counts or i not in TIMES]
    for threads in (0, options.threads):
        print(f"{threads} threads of {options.mib:g} MiB, and the first one")
        head = "".join(f"{FIELDS[i]:>17}" for i in columns)
        print(f"{'':14}{head}" + ("" if options.counts else f"{'of glibc':>10}{'tenth':>7}"))
        middle = {name: [statistics.median(column) for column in zip(*read[threads, name])] for name, _ in allocators}
        for name, _ in allocators:
            row = "".join(f"{middle[name][i]:17.0f}" for i in columns)
            ratio, tenth = (middle[name][i] / middle["glibc"][i] for i in (WAITED, WAITED_TENTH))
            print(f"{name:14}{row}" + ("" if options.counts else f"{ratio:10.2f}{tenth:7.2f}"))


if __name__ == "__main__":
    main()
