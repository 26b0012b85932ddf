"""The control groups that a process is in, of version 1, version 2, or both beside each other: from its own one up to
what can be seen of the tree (a container sees its own group as the top)."""

import collections
import math
import posixpath

# Version 1 says "no limit" by the largest number of pages that it can count.
_NO_LIMIT_V1 = 1 << 62

Limit = collections.namedtuple("Limit", "group bytes used")  # `used`: None where it is not told
Quota = collections.namedtuple("Quota", "group cpus throttled periods")  # `cpus`: CPU seconds a second


class Groups:
    """Those of a process for one controller, "memory" or "cpu": paths of their folders, its own first."""

    def __init__(self, files, process, controller):
        self.files = files
        self.controller = controller
        self.version = None
        self.folders = []
        self._find(f"/proc/{process}/cgroup")

    def _find(self, path):
        lines = [line.split(":", 2) for line in (self.files.text(path) or "").splitlines() if line.count(":") >= 2]
        first = {True: None, False: None}
        for _, controllers, group in lines:
            if self.controller in controllers.split(","):
                first[True] = group
            elif not controllers:
                first[False] = group
        for old in (True, False):
            mount = self._mount(old) if first[old] is not None else None
            if mount:
                self.version = 1 if old else 2
                self.folders = self._up(first[old], *mount)
                return

    def _mount(self, old):
        """(the group that is mounted, where) of the controller's hierarchy; None where it is not mounted."""
        for line in (self.files.text("/proc/self/mountinfo") or "").splitlines():
            before, _, after = line.partition(" - ")
            fields, kind = before.split(), after.split()
            if len(fields) < 5 or len(kind) < 3:
                continue
            if (kind[0] == "cgroup" and self.controller in kind[2].split(",")) if old else kind[0] == "cgroup2":
                return fields[3], fields[4]
        return None

    def _up(self, group, top, mounted):
        inside = posixpath.relpath(group, top) if group.startswith("/") else "."
        # A group that is not below what is mounted cannot be seen from here: what holds for all can.
        parts = [] if inside.startswith("..") else [part for part in inside.split("/") if part != "."]
        folders = [posixpath.join(mounted, *parts[:count]) for count in range(len(parts), -1, -1)]
        return [folder for folder in folders if self.files.names(folder)]

    def numbers(self, folder, name):
        """{name: number} of a file of lines as `oom_kill 0`."""
        rows = [line.split() for line in (self.files.text(f"{folder}/{name}") or "").splitlines()]
        return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdecimal()}


class Memory(Groups):
    def __init__(self, files, process):
        super().__init__(files, process, "memory")
        if self.version == 1:
            # Without use_hierarchy (before Linux 5.11 a choice) a group's limit does not hold for those below.
            self.folders = [folder for number, folder in enumerate(self.folders)
                            if number == 0 or files.number(f"{folder}/memory.use_hierarchy") != 0]

    def _lowest(self, name, used):
        limits = []
        for folder in self.folders:
            limit = self.files.number(f"{folder}/{name}")
            if limit is not None and 0 <= limit < _NO_LIMIT_V1:
                limits.append(Limit(folder, limit, self.files.number(f"{folder}/{used}")))
        return min(limits, key=lambda limit: limit.bytes, default=None)

    def limit(self):
        """The lowest one beyond which memory is refused and processes are killed; None: there is none."""
        return self._lowest("memory.limit_in_bytes", "memory.usage_in_bytes") if self.version == 1 else \
            self._lowest("memory.max", "memory.current")

    def high(self):
        """The lowest one beyond which processes are slowed down (version 2 only)."""
        return None if self.version == 1 else self._lowest("memory.high", "memory.current")

    def swap(self):
        """The lowest limit on swap (version 2 only)."""
        return None if self.version == 1 else self._lowest("memory.swap.max", "memory.swap.current")

    def killed(self):
        """How many processes of its own group, and below it, were killed for want of memory; 0 where it is not told."""
        name = "memory.oom_control" if self.version == 1 else "memory.events"
        return self.numbers(self.folders[0], name).get("oom_kill", 0) if self.folders else 0

    def slowed(self, high):
        """How often the group of this limit was slowed down for it."""
        return self.numbers(high.group, "memory.events").get("high", 0) if high else 0


class Cpu(Groups):
    def __init__(self, files, process):
        super().__init__(files, process, "cpu")

    def quota(self):
        """The lowest one; None: there is none."""
        quotas = []
        for folder in self.folders:
            if self.version == 1:
                words = [self.files.text(f"{folder}/cpu.cfs_{name}_us") or "" for name in ("quota", "period")]
            else:
                words = (self.files.text(f"{folder}/cpu.max") or "").split()
            if len(words) == 2 and words[0].isdecimal() and words[1].isdecimal() and int(words[1]) > 0:
                counts = self.numbers(folder, "cpu.stat")
                quotas.append(Quota(folder, int(words[0]) / int(words[1]), counts.get("nr_throttled", 0),
                                    counts.get("nr_periods", 0)))
        return min(quotas, key=lambda quota: quota.cpus, default=None)


def whole_cpus(quota):
    """As many CPUs as a quota can keep busy at once, without being slowed down more than it must."""
    return max(1, math.ceil(quota.cpus))
