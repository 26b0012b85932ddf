"""One look at a process."""

import collections

from spanalloc_cli.top import heap, heaps, inspection, objects
from spanalloc_cli.top.memory import Memory
from spanalloc_cli.top.process import Process, thread_records, threads_by_mark

# All but `cache` and `figures` are None where it cannot be told which thread has the cache.
Thread = collections.namedtuple("Thread", "cache tid name minor_faults major_faults figures")

_OF_PROC = "what /proc knows is all there is to see"


class Look:
    """`facts`: ProcessFacts; `inspection`: the heap's record, None: no library of ours was found; `totals`, `classes`,
    `threads`: None where the heap does not tell; `heaps`: first-class heaps (heaps.Heaps), None where the library does
    not tell; `note`: why it does not, or what is missing; `torn`, `unread`: see heap.Heap; `is_loaded`: whether
    the program had its libraries. `goes_on`: /proc knows of the process."""

    def __init__(self, facts, goes_on=True):
        self.facts, self._goes_on = facts, goes_on
        self.inspection = self.totals = self.classes = self.threads = self.heaps = None
        self.note = None
        self.is_loaded = True
        self.torn = self.unread = 0

    def find(self, memory, mappings):
        """The heap's record; `note` says why there is none."""
        try:
            self.inspection = inspection.find(memory, mappings)
        except inspection.BadRecord as error:
            self.note = f"{error}; {_OF_PROC}" if self._goes_on else str(error)
            return
        if self.inspection is None:
            self.note = "it does not run on a spanalloc library" + f": {_OF_PROC}" * self._goes_on

    def read(self, memory, tasks, records):
        """What the heap's records tell. `tasks()`, `records(tids)`: see process.Process.tasks() and thread_records().
        False: the heap has not begun."""
        self.heaps = heaps.read(memory, self.inspection.program_heaps)
        self.torn = self.heaps.torn if self.heaps else 0
        if not self.inspection.tells_layout:
            self.note = f"the library {self.inspection.engine} does not tell where its records are{self._rest()}"
            return True
        try:
            walked = heap.Heap(memory, self.inspection)
        except heap.NotStarted:
            self.note = "nothing has been allocated yet"
            return False
        except heap.Unreadable as error:
            self.note = str(error)
            return False
        except heap.NoConstants:
            self.note = f"the constants of {self.inspection.path} cannot be read: it is gone, or is another file by now"
            return True
        self.totals, self.classes = walked.totals, walked.classes
        self.torn += walked.torn
        self.unread = walked.unread
        self.threads = _threads(walked.threads, tasks(), records)
        return True

    def _rest(self):
        """What there is to see of a heap whose records are not known."""
        if self.heaps and self.heaps.heaps:
            return f": first-class heaps{' and what /proc knows' * self._goes_on} are all there is to see"
        return f": {_OF_PROC}" * self._goes_on

    @property
    def in_use_bytes(self):
        """What may be in memory of the heap, with what is free in it, and about what first-class heaps touch; None where
        the heap does not tell."""
        if not self.totals:
            return None
        totals, own = self.totals, self.heaps
        return (self.live_bytes + totals.unsure_bytes + totals.free_bytes - totals.purged_part_bytes
                + totals.kept_span_bytes + totals.pool_bytes + totals.dirty_bytes
                + (own.touched_bytes + own.kept_bytes if own else 0))

    @property
    def live_bytes(self):
        return self.totals.live_bytes + self.totals.large_bytes if self.totals else 0


class Watcher:
    """Looks at one process, again and again."""

    def __init__(self, pid, proc="/proc"):
        self.process = Process(pid, proc)
        self._memory = Memory(pid)
        self._inspection = None
        self._exe = None
        self._problem = None

    @property
    def pid(self):
        return self.process.pid

    def look(self):
        """Ended or CannotRead where nothing can be seen."""
        # Before the facts, which may be those of a time before the program's, in the same process.
        program = self._program()
        is_loaded = self._inspection is not None and program == self._exe or self.process.is_loaded()
        facts = self.process.facts()
        self._find()
        if self._inspection is None:
            # Of another program that runs by now nobody has asked whether its libraries are there.
            is_loaded = is_loaded and self._program() == program
        elif not is_loaded:
            is_loaded, facts = True, self.process.facts()
        look = Look(facts)
        look.is_loaded = is_loaded
        look.inspection, look.note = self._inspection, self._problem
        if self._inspection is None or look.note:
            return look
        if not look.read(self._memory, self.process.tasks, thread_records):
            self._inspection = None  # the loader may not have filled it in yet
        return look

    def _find(self):
        """The heap's record, once; again while there is none, and where the process runs another program by now."""
        program = self._program()
        if self._inspection is not None and program == self._exe:
            return
        found = Look(None)
        found.find(self._memory, self.process.mappings())
        self._exe, self._inspection, self._problem = program, found.inspection, found.note

    def _program(self):
        """What tells one program from the next in the same process: when its memory was laid out."""
        fields = self.process.stat()
        return tuple(fields[23:26] + fields[42:46]) if len(fields) > 46 else ()


def of_still(still):
    """The look at a process that does not go on: a core file (core.Core), or one that a debugger has stopped."""
    look = Look(still.facts(), goes_on=False)
    look.find(still, still.mappings)
    of_file = look.inspection and inspection.is_of_file(still, look.inspection)
    if of_file is False:
        look.note = f"{look.inspection.path} is not the file that the process had, but of another build"
    if look.inspection is not None and not look.note:
        look.read(still, still.tasks, lambda _: still.thread_records())
    notes = [look.note]
    if look.inspection is None:
        notes.append(objects.unread_words(still, still.mappings))
    if look.unread:
        notes.append(f"{look.unread} pieces of the heap's records or lists cannot be read: the figures lack what they say")
    notes += still.warnings
    if of_file and look.inspection.path in still.uncompared:
        notes.append(f"{look.inspection.path} was read for its constants; that it is the file that the process had is known "
                     "by its version alone")
    look.note = "; ".join(filter(None, notes)) or None
    return look


def _threads(caches, tasks, records):
    tasks = {task.tid: task for task in tasks}
    threads = {figures.mark: figures for figures in caches.values()}
    of_mark = threads_by_mark(threads, records(tasks))
    found = []
    for mark, figures in threads.items():
        task = tasks.get(of_mark.get(mark))
        found.append(Thread(figures.cache, task and task.tid, task and task.name, task and task.minor_faults,
                            task and task.major_faults, figures))
    return found


def as_json(pid, command, look):
    """For --json; spanalloc(1) describes it."""
    facts = look.facts._asdict()
    del facts["time"]
    found = {"process": {"pid": pid, "command": command, **facts}}
    which = look.inspection
    found["library"] = which and {"engine": which.engine, "version": which.library_version, "path": which.path}
    found["note"] = look.note
    found["torn_records"] = look.torn
    found["program_heaps"] = look.heaps and {
        "heaps": len(look.heaps.heaps),
        **{name: getattr(look.heaps, name) for name in ("taken_bytes", "used_bytes", "used_blocks", "kept_bytes")},
        "list": [{**{name: getattr(each, name) for name in heaps.OwnHeap.__slots__}, "address": hex(each.address)}
                 for each in look.heaps.heaps]}
    found["totals"] = look.totals and {name: getattr(look.totals, name) for name in heap.Totals.NAMES}
    found["classes"] = look.classes and [
        {name: getattr(figures, name) for name in heap.ClassFigures.__slots__} for figures in look.classes]
    found["threads"] = look.threads and [
        {"cache": thread.cache, "tid": thread.tid, "name": thread.name, "minor_faults": thread.minor_faults,
         "major_faults": thread.major_faults,
         **{name: getattr(thread.figures, name) for name in heap.ThreadFigures.__slots__[2:]}}
        for thread in look.threads]
    return found
