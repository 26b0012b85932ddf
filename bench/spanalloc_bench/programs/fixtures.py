"""The inputs of the real programs. Each function NAME(folder) makes what the cases that name it in `prepare` work on.

They need no network and make the same input again. An input is made beside its place and moved there when it is
complete, so that an interrupted run leaves no half of one.
"""

import os
import pathlib
import shutil
import subprocess

from . import inputs, mariadb, pdf
from .servers import command

# Whatever the user has configured, git does the same.
GIT_ENVIRONMENT = {
    "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", "GIT_PAGER": "cat",
}


def _write(path: pathlib.Path, pieces):
    """Writes pieces of text or bytes to the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(part, "wb") as file:
            for piece in pieces:
                file.write(piece if isinstance(piece, bytes) else piece.encode())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _make_folder(path: pathlib.Path, make):
    """Lets make(folder) fill an empty folder beside `path`, then puts it there instead of what may be there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        make(part)
        shutil.rmtree(path, ignore_errors=True)
        part.rename(path)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def xalan(folder: pathlib.Path):
    _write(folder / "library.xml", inputs.library(14000))


def xalan_quick(folder: pathlib.Path):
    _write(folder / "library-quick.xml", inputs.library(1000))


def ghostscript(folder: pathlib.Path):
    _write(folder / "manual.pdf", pdf.manual(400))


def ghostscript_quick(folder: pathlib.Path):
    _write(folder / "manual-quick.pdf", pdf.manual(40))


def gcc(folder: pathlib.Path):
    _write(folder / "unit.cpp", inputs.translation_unit(8))


def z3(folder: pathlib.Path):
    _write(folder / "proofs.smt2", [*inputs.recursive_trees(14), "(reset)\n", *inputs.hilbert(80)])


def git(folder: pathlib.Path):
    """A bare repository, all of its objects in one pack."""
    program = command("git")

    def run(part, *arguments, **more):
        subprocess.run([program, "-C", str(part), "-c", "core.compression=1", *arguments], check=True,
                       env={**os.environ, **GIT_ENVIRONMENT}, stdout=subprocess.DEVNULL, **more)

    def make(part):
        run(part, "init", "--quiet", "--bare", "--initial-branch=main")
        run(part, "fast-import", "--quiet", input="".join(inputs.history(commits=2500, files=200)).encode())
        # In one thread it is the same pack again. With a bitmap in it, packing anew would only copy.
        run(part, "-c", "pack.threads=1", "-c", "repack.writeBitmaps=false", "repack", "-adfq")

    _make_folder(folder / "history.git", make)


def database(folder: pathlib.Path):
    """A MariaDB data folder with a table for sysbench; the driver copies it for every run."""
    _make_folder(folder / "database", mariadb.make_template)
