"""Which allocators there are: our configs, and others that are installed on this machine."""

import collections
import glob
import json
import os
import re


class Library(collections.namedtuple("Library", "name folder engine config traits")):
    """A line of libraries.txt, which says what its words mean."""

    def value(self, trait):
        """What stands behind a trait's `=`; None where the library has no such trait."""
        return next((word[len(trait) + 1:] for word in self.traits if word.startswith(f"{trait}=")), None)

    @property
    def in_every_build(self):
        """Whether a build has it without SPANALLOC_ABLATIONS."""
        return not {"ships", "built"}.isdisjoint(self.traits)


def _read_list():
    """{name: Library}, in the order of the list: installed beside this file, else the source tree's."""
    here = os.path.dirname(os.path.abspath(__file__))
    path = os.path.join(here, "libraries.txt")
    if not os.path.exists(path):
        path = os.path.join(here, "..", "..", "src", "libraries.txt")
    with open(path, encoding="utf-8") as file:
        lines = [line.split() for line in file if line.strip() and not line.startswith("#")]
    return {name: Library(name, folder, engine, config, tuple(traits)) for name, folder, engine, config, *traits in lines}


LIBRARIES = _read_list()
DEFAULT_CONFIG = "standard"
SHIPPED_CONFIGS = tuple(name for name, library in LIBRARIES.items() if "ships" in library.traits)
# Those compared where nobody says which.
COMPARED_CONFIGS = tuple(name for name in SHIPPED_CONFIGS if "compared" in LIBRARIES[name].traits)


def _names_by(trait):
    return {library.value(trait): name for name, library in LIBRARIES.items() if library.value(trait)}


# What configs were called before: by what the command still understands, and in results that were recorded.
OLD_NAMES, RECORDED_NAMES = _names_by("link"), _names_by("recorded-as")

BUILD = "scripts/try --build-only"  # makes the shipped configs and the command's helpers, in the source tree

# Shared objects that define the malloc family, by the name used in tables. The first that exists counts.
OTHER_ALLOCATORS = {
    "jemalloc": ("libjemalloc.so.2", "libjemalloc.so"),
    "tcmalloc": ("libtcmalloc_minimal.so.4", "libtcmalloc.so.4", "libtcmalloc_minimal.so"),
    "mimalloc": ("libmimalloc.so.3", "libmimalloc.so.2", "libmimalloc.so.2.0", "libmimalloc.so"),
    "tbbmalloc": ("libtbbmalloc_proxy.so.2", "libtbbmalloc_proxy.so"),
    "snmalloc": ("libsnmallocshim.so",),
    "rpmalloc": ("librpmallocwrap.so", "librpmalloc.so"),
    "hoard": ("libhoard.so",),
    "scalloc-original": ("libscalloc.so",),
}
# Those that Debian has, in the order in which tables show them; the rest counts where it is installed.
PACKAGES = {
    "jemalloc": "libjemalloc2", "tcmalloc": "libtcmalloc-minimal4", "mimalloc": "libmimalloc2.0",
    "tbbmalloc": "libtbbmalloc2",
}


class Places:
    """Where the launcher says our files are."""

    def __init__(self, library_dir, helper_dir):
        self.library_dir = os.path.normpath(library_dir)
        self.helper_dir = os.path.normpath(helper_dir)

    @property
    def measure(self):
        return os.path.join(self.helper_dir, "spanalloc-measure")

    @property
    def probe(self):
        return os.path.join(self.helper_dir, "spanalloc-probe.so")


def current_name(name, old_names=None):
    """What a config is called today: `oopsla15-clab` is `scalloc-clab`. Any other name is its own. `old_names`: those of
    recorded results, instead of those that the command understands."""
    base, dash, change = name.partition("-")
    return (OLD_NAMES if old_names is None else old_names).get(base, base) + dash + change


class Missing(Exception):
    """A library that was asked for is not there; the text says what to do."""


def config_path(places, config):
    """Where the library of a config is or would be."""
    name = "libspanalloc.so" if config == DEFAULT_CONFIG else f"libspanalloc-{config}.so"
    return os.path.join(places.library_dir, name)


def our_configs(places):
    """{config: path} of the libraries that are built, the default first. Those with a name of an older version are
    links to others, or what an older version has left there."""
    found = {}
    for path in sorted(glob.glob(os.path.join(places.library_dir, "libspanalloc*.so"))):
        match = re.fullmatch(r"libspanalloc(?:-([\w-]+))?\.so", os.path.basename(path))
        name = match and (match.group(1) or DEFAULT_CONFIG)
        if name and current_name(name) == current_name(name, RECORDED_NAMES) == name:
            found[name] = path
    first = [name for name in SHIPPED_CONFIGS if name in found]
    return {name: found[name] for name in first + [n for n in found if n not in first]}


def require_config(places, config):
    """Path of a config's library. Missing, with what to do, when there is none."""
    config = current_name(config)
    path = config_path(places, config)
    if re.fullmatch(r"[\w-]+", config) and os.path.isfile(path):
        return path
    if config in SHIPPED_CONFIGS:
        raise Missing(
            f"config '{config}' is not built (no {path}).\n"
            f"In the source tree, {BUILD} installs what building needs and builds it; by hand:\n"
            "  cmake --preset release && cmake --build --preset release"
        )
    known = list(dict.fromkeys([*SHIPPED_CONFIGS, *our_configs(places)]))
    raise Missing(f"unknown config '{config}'. Known: {', '.join(known)}.")


def _library_directories():
    triplet = f"{os.uname().machine}-linux-gnu"
    return [
        *filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":")),
        "/usr/local/lib", f"/usr/local/lib/{triplet}", f"/usr/lib/{triplet}", f"/lib/{triplet}",
        "/usr/local/lib64", "/usr/lib64", "/usr/lib",
    ]


# Where `spanalloc bench peers` of this source tree puts today's allocators, built from source; PEERS_LIST names them.
PEERS_FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "build", "peers")
PEERS_LIST = os.path.join(PEERS_FOLDER, "peers.json")


def built_peers():
    """What `spanalloc bench peers` has built and is still there: dictionaries with name, family, replaces, path,
    environment and more (bench/spanalloc_bench/peers.py). Those with `original` are for the papers' figures
    (bench/spanalloc_bench/originals.py)."""
    try:
        with open(PEERS_LIST, encoding="utf-8") as file:
            return [entry for entry in json.load(file) if os.path.isfile(entry["path"])]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise Missing(f"{PEERS_LIST} cannot be read ({error}); `spanalloc bench peers` makes it anew") from None


def write_peers(entries):
    os.makedirs(PEERS_FOLDER, exist_ok=True)
    with open(PEERS_LIST + ".new", "w", encoding="utf-8") as file:
        json.dump(entries, file, indent=1)
        file.write("\n")
    os.replace(PEERS_LIST + ".new", PEERS_LIST)


def other_allocators():
    """{name: path} of the other allocators that are compared: those of this machine, but where `spanalloc bench peers`
    has built a newer one, that, with its version in its name. Originals, which are for figures, are not among them."""
    peers = [entry for entry in built_peers() if not entry.get("original")]
    found = packaged_allocators()
    for entry in peers:
        found.pop(entry["replaces"], None)
    return {**{entry["name"]: entry["path"] for entry in peers}, **found}


def packaged_allocators():
    """{name: path} of the other allocators that are installed on this machine."""
    found = {}
    for name, files in OTHER_ALLOCATORS.items():
        candidates = (os.path.join(d, f) for f in files for d in _library_directories())
        path = next((p for p in candidates if os.path.isfile(p)), None)
        if path:
            found[name] = path
    return found


def glibc():
    """Path of the C library that this process itself runs on; None if it is not glibc."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            path = line.split(maxsplit=5)[-1].strip()
            if os.path.basename(path) == "libc.so.6":
                return path
    return None
