"""Tracks as a package of somebody else: columns that are fields of a record, of several names."""

from dataclasses import dataclass

from unistore import plugin


@dataclass(frozen=True, kw_only=True)
class Tracks(plugin.Family):
    """Tracks: .npz files with records of points."""

    name = "tracks"
    summary = "Tracks: .npz."
    formats = ("npz",)
    schema = plugin.Schema(
        table="points",
        per_source={"count": plugin.Column(kinds="i", description="Points of the track", least=0)},
    )

    def match(self, head: plugin.FileSummary) -> plugin.Claim:
        return plugin.sure("holds points") if self._records(head) else plugin.no("holds no points")

    def choose(self, head: plugin.FileSummary) -> plugin.Chosen:
        records = self._records(head)
        columns = {
            name: plugin.Column(axes=None, source=records, field=name)
            for name in head.arrays[records][1].names
        }
        columns["speed"] = plugin.Column(source="v")
        if "label" in head.opened.of_any_length:
            columns["label_utf8"] = plugin.Column(source="label", ragged=True)
        return plugin.Chosen(columns, metadata={"count": head.arrays[records][0][0]})

    def _records(self, head: plugin.FileSummary) -> str:
        return next((name for name in head.arrays if name.lower() == "points"), "")
