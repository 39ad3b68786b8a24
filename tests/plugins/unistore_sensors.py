"""Logs of sensors as a package of somebody else: columns that depend on the files, two files a source."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from unistore import plugin


@dataclass(frozen=True, kw_only=True)
class Sensors(plugin.Family):
    """Logs of sensors, a time and a values file each."""

    columns: Literal["exact", "union", "intersection"] = plugin.option("exact", "What only some logs have.")

    name = "sensors"
    summary = "Logs of sensors: NAME.time.npy beside NAME.values.npy."
    formats = ("npy",)
    schema = plugin.Schema(table="readings")

    def match(self, head: plugin.FileSummary) -> plugin.Claim:
        if head.file.path.name.endswith((".time.npy", ".values.npy")):
            return plugin.sure("is called as a log")
        return plugin.no("is called otherwise")

    def group(self, files: Sequence[plugin.SourceFile]) -> plugin.Grouping:
        times = {file.name: file for file in files}
        found = plugin.Grouping()
        for file in files:
            log = file.name.removesuffix(".values.npy")
            if log == file.name:
                continue
            if f"{log}.time.npy" in times:
                found.sources.append(plugin.Group(log, (times[f"{log}.time.npy"], file), ("time", "values")))
            else:
                found.problems.append(plugin.Problem(file.name, "has no time beside it", kind="missing"))
        found.notes.append(f"{len(found.sources)} logs in pairs")
        return found

    def choose(self, head: plugin.FileSummary) -> plugin.Chosen:
        columns = {"time": plugin.Column(kinds="iu", unit="us", description="when")}
        for field in head.arrays["values"][1].names or ():
            columns[field] = plugin.Column(source="values", field=field, description=f"sensor {field}")
        return plugin.Chosen(columns, notes=["came in a drawer"])
