"""The commands of gdb: `spanalloc block`, `spanalloc heap`, `spanalloc find`. scripts/gdb/spanalloc.py loads this, in
gdb's own Python. gdb is asked for memory, mappings and threads alone; symbols and debug information are not needed."""

import os
import re

import gdb

from spanalloc_cli import maps
from spanalloc_cli.terminal import plain
from spanalloc_cli.top import inspection, look as looks, objects, screen
from spanalloc_cli.top.blocks import MOST_FOUND, Blocks, Unknown
from spanalloc_cli.top.memory import Reader
from spanalloc_cli.top.process import ProcessFacts, Task, printable

_WIDTH = 140
_ROW = re.compile(r"^\s*0x([0-9a-f]+)\s+0x([0-9a-f]+)\s+0x[0-9a-f]+\s+0x([0-9a-f]+)\s+(?:[r-][w-][x-][ps]\s+)?(/.*)$")
_REFERENCES = (gdb.TYPE_CODE_REF, gdb.TYPE_CODE_RVALUE_REF)
# By the architecture's name: the register that has the address of the C library's record of a thread.
_THREAD_REGISTERS = {"i386:x86-64": ("fs_base",), "aarch64": ("tpidr", "tpidr_el0")}


class Stopped(Reader):
    """The process, or the core file, that gdb has before it. As core.Core."""

    def __init__(self):
        self._inferior = gdb.selected_inferior()
        if not self._inferior.pid or not self._inferior.threads():
            raise gdb.GdbError("There is no process, and no core file: `run`, `attach PID` or `core-file FILE` first.")
        self.pid = self._inferior.pid
        self.mappings = self._mappings()

    def read(self, address, size):
        if size == 0:
            return memoryview(b"")
        if not 0 <= address < 1 << 63 or not 0 < size < 1 << 40:
            return None
        try:
            return memoryview(bytes(self._inferior.read_memory(address, size)))
        except (gdb.MemoryError, gdb.error, OverflowError):
            return None

    @staticmethod
    def _mappings():
        try:
            text = gdb.execute("info proc mappings", to_string=True)
        except gdb.error as error:
            raise gdb.GdbError(f"The mappings of the process cannot be had: {error}") from None
        rows = (_ROW.match(line) for line in text.splitlines())
        return [maps.Mapping(*(int(number, 16) for number in row.groups()[:2]), "", int(row[3], 16), row[4].strip())
                for row in rows if row]

    def tasks(self):
        return [Task(_number(thread), printable(thread.name or ""), None, None) for thread in self._inferior.threads()]

    def thread_records(self):
        """{number: an address in its C library's record}."""
        found = {}
        before, frame = gdb.selected_thread(), _selected_frame()
        try:
            for thread in self._inferior.threads():
                record = _thread_record(thread)
                if record is not None:
                    found[_number(thread)] = record
        finally:
            if before is not None and before.is_valid():
                before.switch()
            if frame is not None and frame.is_valid():
                frame.select()
        return found

    def facts(self):
        nothing = dict.fromkeys(ProcessFacts._fields)
        program = gdb.current_progspace().filename or "?"
        return ProcessFacts(**{**nothing, "time": 0.0, "name": printable(os.path.basename(program)),
                               "threads": len(self._inferior.threads())})


def _thread_record(thread):
    """None where it is not known, as of a thread that runs (`set non-stop on`) and has no registers to read."""
    try:
        thread.switch()
        frame = gdb.newest_frame()
        names = _THREAD_REGISTERS.get(frame.architecture().name(), ())
    except (gdb.error, RuntimeError):
        return None
    for name in names:
        try:
            return int(frame.read_register(name))
        except (ValueError, gdb.error):
            continue
    return None


def _number(thread):
    """The kernel's."""
    return thread.ptid[1] or thread.ptid[0]


def _selected_frame():
    try:
        return gdb.selected_frame()
    except gdb.error:
        return None


def _blocks():
    stopped = Stopped()
    try:
        found = inspection.find(stopped, stopped.mappings)
    except inspection.BadRecord as error:
        raise gdb.GdbError(f"{error}.") from None
    if found is None:
        unread = objects.unread_words(stopped, stopped.mappings)
        raise gdb.GdbError("The process does not run on a spanalloc library, or has not loaded it yet"
                           + (f"; {unread}." if unread else "."))
    try:
        return Blocks(stopped, found)
    except Unknown as error:
        raise gdb.GdbError(f"{error}.") from None


def _value_of(expression):
    """An expression of gdb's as 64 bits. (Types have no names here: those are another language's in a program of Rust.)
    """
    try:
        value = gdb.parse_and_eval(expression)
        if value.type.strip_typedefs().code in _REFERENCES:
            value = value.referenced_value()
        if value.type.strip_typedefs().code in (gdb.TYPE_CODE_ARRAY, gdb.TYPE_CODE_FUNC):
            value = value.address
        return int(value) & (1 << 64) - 1
    except (gdb.error, TypeError, ValueError, OverflowError) as error:  # the others: of what is no number
        raise gdb.GdbError(str(error)) from None


def _print(lines):
    for line in lines:
        gdb.write(f"{plain(line).rstrip()}\n")


class _Spanalloc(gdb.Command):
    """What the heap of spanalloc holds, in the process or core file before you.

spanalloc block ADDRESS   the block there: its span, its owner, live or free, its link, its neighbours
spanalloc heap            totals, and the blocks by size
spanalloc find VALUE      the live blocks that hold a word

docs/debugging.md has examples."""

    def __init__(self):
        super().__init__("spanalloc", gdb.COMMAND_DATA, prefix=True)

    def invoke(self, argument, from_tty):
        if argument:
            raise gdb.GdbError(f'There is no "spanalloc {argument.split()[0]}". Try "help spanalloc".')
        gdb.execute("help spanalloc")


class _Block(gdb.Command):
    """The block of spanalloc's heap that has an address: spanalloc block ADDRESS

ADDRESS is any expression: an address inside the block will do."""

    def __init__(self):
        super().__init__("spanalloc block", gdb.COMMAND_DATA, gdb.COMPLETE_EXPRESSION)

    def invoke(self, argument, from_tty):
        if not argument:
            raise gdb.GdbError("Which one? spanalloc block ADDRESS")
        _print(_blocks().describe(_value_of(argument)))


class _Heap(gdb.Command):
    """What spanalloc's heap holds: totals, the blocks by size, the threads. As `spanalloc top --once`."""

    def __init__(self):
        super().__init__("spanalloc heap", gdb.COMMAND_DATA)

    def invoke(self, argument, from_tty):
        if argument:
            raise gdb.GdbError("spanalloc heap takes no arguments")
        stopped = Stopped()
        _print(screen.Screen(stopped.pid).draw(looks.of_still(stopped), _WIDTH))


class _Find(gdb.Command):
    __doc__ = f"""The live blocks of spanalloc's heap that hold a word: spanalloc find VALUE

VALUE is any expression, taken as 64 bits; only words at multiples of 8 are looked at. At most {MOST_FOUND} places are
printed. All of the heap's memory is read."""

    def __init__(self):
        super().__init__("spanalloc find", gdb.COMMAND_DATA, gdb.COMPLETE_EXPRESSION)

    def invoke(self, argument, from_tty):
        if not argument:
            raise gdb.GdbError("Which one? spanalloc find VALUE")
        _print(_blocks().find(_value_of(argument)))


def register():
    for command in (_Spanalloc, _Block, _Heap, _Find):
        command()
