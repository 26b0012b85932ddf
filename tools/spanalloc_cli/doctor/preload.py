"""What LD_PRELOAD and /etc/ld.so.preload name, entry by entry, as ld.so(8) takes it."""

import collections
import os
import posixpath
import re
import struct

from spanalloc_cli.doctor import elf

SYSTEM_FILE = "/etc/ld.so.preload"
_CACHE = "/etc/ld.so.cache"
_CACHE_MAGIC = b"glibc-ld.so.cache1.1"


class Entry(collections.namedtuple("Entry", "text path elf problem")):
    """`path`: the file, without links, None where there is none or only the loader can tell; `elf`: what is in it;
    `problem`: why the loader will not take it, None where nothing speaks against it."""

    @property
    def is_ours(self):
        return is_our_file(self.text) or bool(self.elf and self.elf.allocator == "spanalloc" and self.gives_malloc)

    @property
    def gives_malloc(self):
        """Of a file whose symbols cannot be read the name counts."""
        if self.elf is None or self.elf.exported is None:
            return self.elf is not None and is_our_file(self.text)
        return "malloc" in self.elf.exported

    @property
    def allocator(self):
        """What to call the allocator in it."""
        return allocator_name(self.elf, self.path or self.text)


def is_our_file(path):
    return re.match(r"libspanalloc[\w-]*\.so([. ]|$)", posixpath.basename(path)) is not None


def engine_of(path):
    """The config of one of our libraries, by its file's name."""
    found = re.match(r"libspanalloc(?:-([\w-]+))?\.so", posixpath.basename(path))
    return (found and found.group(1)) or "standard"


def allocator_name(read, path):
    name = read.allocator if read else None
    return name if name and name != "glibc" else posixpath.basename(path)


def names(text):
    """What a value of LD_PRELOAD names: colons and spaces part it, and nothing escapes them."""
    return [word for word in re.split(r"[ :]+", text or "") if word]


def names_of_file(text):
    """The same of /etc/ld.so.preload: there white space and colons part them, and # begins a comment."""
    lines = [line.split("#", 1)[0] for line in (text or "").splitlines()]
    return [word for word in re.split(r"[\s:]+", "\n".join(lines)) if word]


class Loader:
    """Looks for files as the loader of a process does whose root folder is `top` and whose folder is `current`."""

    def __init__(self, files, environment, top="", current="/"):
        self._files, self._top, self._current = files, top, current
        self._folders = [folder for folder in re.split("[:;]", environment.get("LD_LIBRARY_PATH", "")) if folder]
        self._cache = None

    def entry(self, text):
        if "$" in text:
            return Entry(text, None, None, None)  # $LIB and the like: only the loader knows
        path = self._path(text)
        if path is None:
            return Entry(text, None, None, "is not there")
        if not self._files.is_file(self._top + path):
            return Entry(text, path, None, "is no file")
        if not self._files.can_read(self._top + path):
            return Entry(text, path, None, "may not be read by you")
        try:
            read = elf.read(self._files, self._top + path)
        except elf.NotElf as error:
            return Entry(text, path, None, f"is no library ({error})")
        if not read.is_native:
            return Entry(text, path, read, f"is for another processor ({read.bits} bits, {read.machine})")
        return Entry(text, path, read, None)

    def _path(self, text):
        if "/" in text:
            return self._files.resolved(posixpath.join(self._current, text), self._top)
        triplet = f"{elf.native_machine()}-linux-gnu"
        candidates = [posixpath.join(folder, text) for folder in self._folders]
        candidates += filter(None, [self._cached(text)])
        candidates += [f"{folder}/{text}" for folder in
                       (f"/lib/{triplet}", f"/usr/lib/{triplet}", "/lib64", "/usr/lib64", "/lib", "/usr/lib")]
        found = (self._files.resolved(posixpath.join(self._current, path), self._top) for path in candidates)
        return next(filter(None, found), None)

    def _cached(self, name):
        """What ldconfig(8) has noted for a library's name, in the format that glibc has had since 2.2."""
        if self._cache is None:
            data = self._files.bytes(self._top + _CACHE) or b""
            start = data.find(_CACHE_MAGIC)
            self._cache = {}
            if start >= 0 and len(data) >= start + 48:
                (count,) = struct.unpack_from("=I", data, start + 20)
                for number in range(min(count, (len(data) - start - 48) // 24)):
                    _, key, value = struct.unpack_from("=iII", data, start + 48 + 24 * number)
                    self._cache.setdefault(_string(data, start + key), _string(data, start + value))
        return self._cache.get(name)


def _string(data, at):
    return os.fsdecode(data[at:data.find(b"\0", at)])
