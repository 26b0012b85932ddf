"""The one door to the system's files: below a root folder, so that tests can put made-up ones there."""

import errno
import os
import posixpath

_GONE = {errno.ENOENT, errno.ENOTDIR, errno.ESRCH}
_MOST_LINKS = 40  # as the kernel


class Files:
    """Reads files by their absolute paths below `root`. What is not there, or cannot be read, is None; what the kernel
    refuses is remembered in `refused` as {path: reason}, so that it can be said."""

    def __init__(self, root="/"):
        self.root = root.rstrip("/")
        self.refused = {}

    def _ask(self, ask, path):
        try:
            return ask(self.root + path)
        except OSError as error:
            if error.errno not in _GONE:
                self.refused[path] = error.strerror or str(error)
            return None

    def bytes(self, path, most=-1):
        def read(name):
            with open(name, "rb") as file:
                return file.read(most)

        return self._ask(read, path)

    def text(self, path):
        """Without the white space at its ends."""
        data = self.bytes(path)
        return None if data is None else data.decode("utf-8", "replace").strip()

    def number(self, path):
        text = self.text(path)
        return int(text) if text is not None and text.lstrip("-").isdecimal() else None

    def chosen(self, path):
        """The word in brackets of a file as `always [madvise] never`."""
        words = (self.text(path) or "").split()
        return next((word[1:-1] for word in words if word.startswith("[") and word.endswith("]")), None)

    def table(self, path):
        """{name: rest} of a file of lines as `VmRSS:   100 kB`."""
        lines = (line.partition(":") for line in (self.text(path) or "").splitlines())
        return {name.strip(): rest.strip() for name, colon, rest in lines if colon}

    def names(self, path):
        """What is in a folder; empty where there is none."""
        return sorted(self._ask(os.listdir, path) or [])

    def link(self, path):
        """Where a symbolic link leads, as it is written."""
        return self._ask(os.readlink, path)

    def status(self, path):
        return self._ask(os.stat, path)

    def attribute(self, path, name):
        """An extended attribute; None where the file has none or its file system knows none."""
        try:
            return os.getxattr(self.root + path, name)
        except OSError:
            return None

    def opened(self, path):
        """The file, open for reading bytes; None where it cannot be."""
        return self._ask(lambda name: open(name, "rb"), path)

    def is_file(self, path):
        return os.path.isfile(self.root + path)

    def can_read(self, path):
        return os.access(self.root + path, os.R_OK)

    def resolved(self, path, top=""):
        """`path` without symbolic links, for a process whose root folder is `top`; None where nothing is there."""
        parts, done, links = [part for part in path.split("/") if part], "/", 0
        while parts:
            part = parts.pop(0)
            if part in (".", ".."):
                done = posixpath.normpath(posixpath.join(done, part))
                continue
            here = posixpath.join(done, part)
            if not os.path.lexists(self.root + top + here):
                return None
            if not os.path.islink(self.root + top + here):
                done = here
                continue
            links += 1
            target = self.link(top + here)
            if target is None or links > _MOST_LINKS:
                return None
            parts = [each for each in target.split("/") if each] + parts
            done = "/" if target.startswith("/") else done
        return done


def kib(text):
    """The bytes of a value as `100 kB`; None where it is none."""
    words = (text or "").split()
    return int(words[0]) * 1024 if words and words[0].isdecimal() else None


def cpu_list(text):
    """The set of numbers of a list as `0-3,8`."""
    found = set()
    for part in filter(None, (text or "").split(",")):
        first, dash, last = part.partition("-")
        if not first.strip().isdecimal() or (dash and not last.strip().isdecimal()):
            return set()
        found.update(range(int(first), int(last if dash else first) + 1))
    return found
