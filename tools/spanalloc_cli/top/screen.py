"""Tables of a look, as wide and as high as the terminal."""

import textwrap

from spanalloc_cli.terminal import Table, cropped, padded, paint, width_of

SORTS = ("live", "free", "fullness", "size")  # of the table of classes, by the key s
_BAR = 10
_WIDE = 150  # columns from which on the two tables stand side by side
_SMALL = 80  # columns below which some are left out
_TABLE_LINES = 3  # of a table without its rows: a line before it, heading, rule
_MOST_ROWS = 40  # of the table of first-class heaps
_OTHER_COLUMNS, _OTHER_COLUMNS_SMALL = 68, 50  # of that table, beside the names
_LEAST_NAME = 10
_LEAST_ROWS = 4  # of a table; without room for that in both the one of threads is left out
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def amount(size):
    """1536 -> 1.5 KiB"""
    value, unit = float(size), 0
    while value >= 999.5 and unit + 1 < len(_UNITS):
        value, unit = value / 1024, unit + 1
    return f"{value:.0f} {_UNITS[unit]}" if unit == 0 or value >= 99.95 else f"{value:.1f} {_UNITS[unit]}"


def duration(seconds):
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{days} d {hours:02}:{minutes:02}" if days else f"{hours}:{minutes:02}:{seconds:02}"


def per_second(now, before, seconds):
    """Of two counts; empty where there is nothing to compare."""
    if before is None or now is None or seconds <= 0:
        return ""
    return f"{(now - before) / seconds:,.0f}/s"


def _bar(part, whole, unsure=0):
    if whole <= 0:
        return " " * _BAR
    full = round(_BAR * part / whole)
    maybe = min(round(_BAR * (part + unsure) / whole), _BAR) - full
    colour = "green" if part >= 0.75 * whole else "yellow" if part >= 0.35 * whole else "red"
    rest = _BAR - full - max(maybe, 0)
    return paint("█" * full + "▒" * max(maybe, 0), colour) + paint("·" * rest, "dim")


def _percent(part, whole):
    return f"{100 * part / whole:.0f} %" if whole else "-"


class Screen:
    """Draws looks. `previous` ones tell rates."""

    def __init__(self, pid):
        self.pid = pid
        self.sort = SORTS[0]
        self.paused = False
        self._before = None

    def next_sort(self):
        self.sort = SORTS[(SORTS.index(self.sort) + 1) % len(SORTS)]

    def remember(self, look):
        """The look with which the next one is compared."""
        self._before = look

    def draw(self, look, width, height=None, keys=False):
        """The lines. `height`: how many there may be; None: as many as it takes."""
        found = [self._title(look, width), *self._figures(look, width)]
        if look.note:
            note = textwrap.wrap(f"{look.note[0].upper()}{look.note[1:]}.", max(width - 1, 20))
            found += [paint(f" {line}", "yellow") for line in note]
        rows = None if height is None else height - len(found) - keys
        if look.heaps and look.heaps.heaps:
            found += self._with_heaps(look, width, rows)
        elif look.classes is not None:
            found += self._tables(look, width, rows)
        if keys:
            found.append(paint(" q quit   s sort   p pause" if width >= 30 else " q s p", "dim"))
        return [cropped(line, width) for line in found]

    # ---- the head ----

    def _title(self, look, width):
        facts = look.facts
        words = [f" {facts.name}", self.pid is not None and f"PID {self.pid}",
                 facts.uptime_s is not None and f"up {duration(facts.uptime_s)}", f"{facts.threads} thread{'s' * (facts.threads != 1)}"]
        words = [word for word in words if word]
        if look.inspection is not None:
            words.append(f"spanalloc {look.inspection.library_version} ({look.inspection.engine})")
        if look.torn:
            words.append(f"{look.torn} torn")
        return paint(padded(cropped("  ".join(words), width), width), "bold", "reverse")

    def _figures(self, look, width):
        totals, facts, before = look.totals, look.facts, self._before and self._before.facts
        seconds = facts.time - before.time if before else 0
        cells = []
        if totals:
            cells += [("live", amount(look.live_bytes)),
                      ("free in spans", amount(totals.free_bytes - totals.kept_block_bytes)),
                      ("cached", amount(totals.kept_block_bytes + totals.kept_span_bytes)),
                      ("purgeable", amount(totals.pool_bytes + totals.dirty_bytes)),
                      ("retained", amount(totals.clean_bytes + totals.purged_part_bytes + totals.decommitted_bytes))]
            if totals.unsure_bytes:
                cells.insert(1, ("unsure", amount(totals.unsure_bytes)))
        if look.heaps and look.heaps.heaps:
            cells.append(("first-class heaps", amount(look.heaps.touched_bytes)))
            if totals:
                cells.append(("in all", amount(look.in_use_bytes)))
        cells += self._of_kernel(facts, before, seconds) if facts.rss_bytes is not None else []
        widths = [max(len(label), len(value)) + 2 for label, value in cells]
        room = sum(sum(widths[:n + 1]) <= width for n in range(len(cells)))
        # What does not fit comes in a line of its own.
        found = ["".join(paint(f"{label:>{wide}}", "dim") for (label, _), wide in zip(cells[:room], widths)),
                 "".join(paint(f"{value:>{wide}}", "bold") for (_, value), wide in zip(cells[:room], widths))]
        return found + ["  ".join(f" {label} {value}" for label, value in cells[room:])] * (room < len(cells))

    @staticmethod
    def _of_kernel(facts, before, seconds):
        cells = [("RSS", amount(facts.rss_bytes)), ("of files", amount(facts.rss_file_bytes)),
                 ("page tables", amount(facts.page_table_bytes))]
        if facts.swap_bytes:
            cells.append(("swapped", amount(facts.swap_bytes)))
        rate = per_second(facts.minor_faults, before and before.minor_faults, seconds)
        cells.append(("faults", rate or f"{facts.minor_faults:,}"))
        if facts.major_faults:
            rate = per_second(facts.major_faults, before and before.major_faults, seconds)
            cells.append(("from disk", rate or f"{facts.major_faults:,}"))
        return cells

    # ---- the tables ----

    def _with_heaps(self, look, width, height):
        """The tables, and below them that of first-class heaps: a third of the height, or what the others leave."""
        if look.classes is None:
            return ["", *self._heaps(look, None if height is None else height - _TABLE_LINES, width)]
        if height is None:
            return [*self._tables(look, width, None), "", *self._heaps(look, min(len(look.heaps.heaps) + 1, _MOST_ROWS),
                                                                       width)]
        rows = min(len(look.heaps.heaps) + 1, max(height // 3 - _TABLE_LINES, 2))
        if height < 4 * _TABLE_LINES:
            return self._tables(look, width, height)
        tables = self._tables(look, width, height - rows - _TABLE_LINES)
        return [*tables, "", *self._heaps(look, min(height - len(tables) - _TABLE_LINES, _MOST_ROWS), width)]

    def _tables(self, look, width, height):
        classes, threads = len(look.classes) + (look.totals.large_objects > 0), len(look.threads)
        if width >= _WIDE:
            rows = None if height is None else height - _TABLE_LINES
            left, right = self._classes(look, rows, width), self._threads(look, rows, width)
            wide = max(map(width_of, left)) + 4
            left += [""] * (len(right) - len(left))
            right += [""] * (len(left) - len(right))
            return ["", *(padded(one, wide) + other if other else one for one, other in zip(left, right))]
        if height is None:
            return ["", *self._classes(look, None, width), "", *self._threads(look, None, width)]
        rows = height - 2 * _TABLE_LINES
        if rows < 2 * _LEAST_ROWS:
            return ["", *self._classes(look, max(height - _TABLE_LINES, 1), width)]
        for_threads = min(threads, max(rows // 3, rows - classes, _LEAST_ROWS))
        return ["", *self._classes(look, rows - for_threads, width), "", *self._threads(look, for_threads, width)]

    def _ordered(self, classes):
        def fullness(figures):
            return figures.live_blocks / figures.blocks if figures.blocks else 0

        if self.sort == "live":
            return sorted(classes, key=lambda f: -f.live_blocks * f.block_bytes)
        if self.sort == "free":
            return sorted(classes, key=lambda f: -f.free_blocks * f.block_bytes)
        if self.sort == "fullness":
            return sorted(classes, key=fullness)
        return classes

    def _classes(self, look, rows, width):
        small = width < _SMALL
        headings = ["block", "spans", "live blocks", "live", "share", "free", "cached", "fullness"]
        mark = {"size": "block"}.get(self.sort, self.sort)
        shown = [heading for heading in headings if not (small and heading in ("spans", "live blocks", "cached"))]
        table = Table(*(">" * (heading != "fullness") + heading + "▾" * (heading == mark) for heading in shown))
        ordered = self._ordered(look.classes)
        large = look.totals.large_objects
        room = len(ordered) if rows is None else rows - (1 if large else 0)
        cut = room < len(ordered)

        def share(live):
            return _percent(live, look.live_bytes)

        for f in ordered[:max(room - 1, 0)] if cut else ordered:
            percent = 100 * f.live_blocks / f.blocks if f.blocks else 0
            whole = f"{_bar(f.live_blocks, f.blocks, f.unsure_blocks)} {percent:3.0f} %"
            if f.unsure_blocks and not small:
                whole += paint(f"  {f.unsure_blocks:,} unsure", "dim")
            cells = {
                "block": amount(f.block_bytes), "spans": f"{f.spans:,}", "live blocks": f"{f.live_blocks:,}",
                "live": amount(f.live_blocks * f.block_bytes), "share": share(f.live_blocks * f.block_bytes),
                "free": amount((f.free_blocks - f.kept_blocks) * f.block_bytes),
                "cached": amount(f.kept_blocks * f.block_bytes) if f.kept_blocks else "-", "fullness": whole}
            table.add(*(cells[heading] for heading in shown))
        if cut:
            rest = ordered[max(room - 1, 0):]
            live = sum(f.live_blocks * f.block_bytes for f in rest)
            cells = {"block": "…", "spans": f"{sum(f.spans for f in rest):,}",
                     "live blocks": f"{sum(f.live_blocks for f in rest):,}", "live": amount(live), "share": share(live),
                     "fullness": paint(f"{len(rest)} more classes", "dim")}
            table.add(*(cells.get(heading, "") for heading in shown))
        if large:
            cells = {"block": "larger", "live blocks": f"{large:,}", "live": amount(look.totals.large_bytes),
                     "share": share(look.totals.large_bytes)}
            table.add(*(cells.get(heading, "") for heading in shown))
        return table.lines()

    def _heaps(self, look, rows, width):
        """The largest first, and a last line for all."""
        small = width < _SMALL
        headings = ["heap", "blocks", "live", "taken", "share", "limit", "fullness"]
        shown = [heading for heading in headings if not (small and heading in ("blocks", "share"))]
        table = Table(*(">" * (heading not in ("heap", "fullness")) + heading for heading in shown))
        found = look.heaps.heaps
        room = _MOST_ROWS if rows is None else max(rows, 1)
        named = found if len(found) < room else found[:max(room - 2, 0)]

        def add(name, heaps, limit=""):
            taken, used = sum(heap.taken_bytes for heap in heaps), sum(heap.used_bytes for heap in heaps)
            cells = {
                "heap": name, "blocks": f"{sum(heap.used_blocks for heap in heaps):,}", "live": amount(used),
                "taken": amount(taken), "share": _percent(taken, look.heaps.taken_bytes), "limit": limit,
                "fullness": f"{_bar(used, taken)} {100 * used / taken if taken else 0:3.0f} %"}
            table.add(*(cells[heading] for heading in shown))

        name_width = max(width - (_OTHER_COLUMNS_SMALL if small else _OTHER_COLUMNS), _LEAST_NAME)
        for heap in named:
            name = heap.name if width_of(heap.name) <= name_width else cropped(heap.name, name_width - 1) + "…"
            add(name or f"{heap.address:#x}", [heap], amount(heap.limit_bytes) if heap.limit_bytes else "-")
        rest = found[len(named):]
        if rest and room >= 2:
            add(paint(f"… {len(rest):,} more", "dim"), rest)
        add(f"all {len(found):,}" + (" and more" if look.heaps.is_cut else ""), found)
        return table.lines()

    def _threads(self, look, rows, width):
        small = width < _SMALL
        headings = ["TID", "thread", "spans", "of", "live", "cached", "faults"]
        shown = [heading for heading in headings if not (small and heading in ("spans", "faults"))]
        table = Table(*(">" * (heading != "thread") + heading for heading in shown))
        before = {thread.tid: thread for thread in (self._before.threads or ())} if self._before else {}
        seconds = look.facts.time - self._before.facts.time if self._before else 0
        def span_bytes(of):
            return of.figures.span_bytes

        def live_bytes(of):
            return of.figures.live_bytes

        def cached_bytes(of):
            return of.figures.kept_block_bytes + of.figures.kept_span_bytes

        threads = sorted(look.threads, key=lambda thread: -span_bytes(thread) - cached_bytes(thread))
        cut = rows is not None and rows < len(threads)
        for thread in threads[:max(rows - 1, 0)] if cut else threads:
            figures, earlier = thread.figures, before.get(thread.tid)
            rate = per_second(thread.minor_faults, earlier and earlier.minor_faults, seconds)
            faults = rate or ("-" if thread.minor_faults is None else f"{thread.minor_faults:,}")
            cells = {
                "TID": "?" if thread.tid is None else str(thread.tid), "thread": thread.name or f"cache {thread.cache}",
                "spans": f"{figures.spans:,}", "of": amount(span_bytes(thread)),
                "live": amount(live_bytes(thread)), "cached": amount(cached_bytes(thread)), "faults": faults}
            table.add(*(cells[heading] for heading in shown))
        if cut:
            rest = threads[max(rows - 1, 0):]
            cells = {"TID": "…", "thread": f"{len(rest)} more",
                     "spans": f"{sum(t.figures.spans for t in rest):,}",
                     "of": amount(sum(map(span_bytes, rest))), "live": amount(sum(map(live_bytes, rest))),
                     "cached": amount(sum(map(cached_bytes, rest)))}
            table.add(*(cells.get(heading, "") for heading in shown))
        return table.lines()
