"""`spanalloc list`."""

from spanalloc_cli import libraries, output
from spanalloc_cli.terminal import Output, Table


def do(places, given, has_suite):
    ours = libraries.our_configs(places)
    rows = [(name, "spanalloc", ours.get(name)) for name in dict.fromkeys([*libraries.SHIPPED_CONFIGS, *ours])]
    rows.append(("glibc", "C library", libraries.glibc()))
    rows += [(name, "other", path) for name, path in libraries.other_allocators().items()]
    if given.json:
        output.print_json({"allocators": [{"name": name, "kind": kind, "path": path} for name, kind, path in rows]})
        return 0
    table = Table("name", "kind", "library")
    for name, kind, path in rows:
        table.add(name, kind, path or ("not found" if kind == "C library" else f"not built: {libraries.BUILD}"))
    Output().print(*table.lines())
    packaged = libraries.packaged_allocators()
    missing = [package for name, package in libraries.PACKAGES.items() if name not in packaged]
    if has_suite and not libraries.built_peers():
        print("Newer ones can be built from source: spanalloc bench peers")
    if missing:
        print(f"Debian has more to compare with: apt install {' '.join(missing)}")
    return 0
