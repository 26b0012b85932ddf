"""medians.csv: what the samples of a run come to, one line a case and contender, for a spreadsheet or a script."""

from __future__ import annotations

import os

from spanalloc_bench import store
from spanalloc_bench.model import OK

MEDIANS = "medians.csv"
NUMBERS = (
    "elapsed_s", "operations", "wall_s", "user_s", "system_s", "peak_kib", "peak_rss_kib", "peak_page_tables_kib",
    "minor_faults", "major_faults", "voluntary_switches", "involuntary_switches", "peak_live_bytes",
)


def table(folder):
    """A pandas.DataFrame: rounds begun and finished, the medians of the finished ones, and of the time its spread."""
    samples = store.read(folder)
    cells = samples.groupby(["case", "allocator"], sort=False)
    finished = samples[samples.status == OK].groupby(["case", "allocator"], sort=False)
    out = cells.size().rename("rounds").to_frame()
    out["finished"] = finished.size().reindex(out.index, fill_value=0)
    out = out.join(finished[list(NUMBERS)].median())
    time = finished["elapsed_s"]
    out.insert(3, "elapsed_spread", (time.max() - time.min()) / time.median())
    return out.reset_index()


def write(folder, target=None) -> str:
    """Writes it into the run's folder, or into another one; returns its path."""
    path = os.path.join(target or folder, MEDIANS)
    table(folder).to_csv(path + ".new", index=False, float_format="%.9g")
    os.replace(path + ".new", path)
    return path
