"""What the ``config.yaml`` of a SpikeCV data set says of the streams in its folder and below."""

from __future__ import annotations

from typing import NamedTuple

from unistore.converters.files.paths import is_inside
from unistore.converters.plugin import SourceFile

CONFIG = "config.yaml"
_SIZES = ("spike_h", "spike_w")
# Keys that say nothing of the spikes
_OF_LABELS = (
    *("filename", "transform", "is_labeled", "labeled_data_type", "labeled_data_suffix"),
    *("data_field_identifier", "label_field_identifier"),
)
# Bytes of a file that is read
_LARGEST = 1 << 16


class Config(NamedTuple):
    """Height and width in pixels, and the name of the file that says so."""

    height: int
    width: int
    name: str


def config_of(stream: SourceFile) -> Config | None:
    """Read the nearest ``config.yaml`` of SpikeCV beside or above a stream, inside the given paths, if any.

    Raises
    ------
    InputError
        If it says something that is not known here, or no whole size.
    """
    parts = stream.name.split("/")
    for level in range(len(parts)):
        path = stream.path.parents[level] / CONFIG
        if path.is_file() and is_inside(path, stream.roots):
            name = "/".join([*parts[: len(parts) - level - 1], CONFIG])
            config = read_config(SourceFile(path, name, stream.roots))
            if config is not None:
                return config
    return None


def read_config(file: SourceFile) -> Config | None:
    """Read lines ``key: value``; None if none of them is a size; see `config_of`."""
    cure = "correct it, or give --height and --width"
    lines = file.head(_LARGEST).decode("utf-8", "replace").splitlines()
    if not any(line.startswith(_SIZES) for line in lines):
        return None
    settings: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].rstrip()
        if not text:
            continue
        key, colon, value = text.partition(":")
        if not colon or key in settings or key not in (*_SIZES, *_OF_LABELS):
            message = f"says {text[:60]!r} in line {number}, which is not known of SpikeCV"
            raise file.problem(message, cure)
        settings[key] = value.strip()
    sizes = [settings.get(key, "") for key in _SIZES]
    if not all(size.isascii() and size.isdigit() and int(size) for size in sizes):
        message = f"says no whole {' and '.join(_SIZES)}"
        raise file.problem(message, cure)
    height, width = map(int, sizes)
    return Config(height, width, file.name)
