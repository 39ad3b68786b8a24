"""Recordings of sound as a package of somebody else: one format, one family of ragged samples."""

import wave
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from unistore.plugin import Array, Claim, Column, Cut, Family, Format, Head, Opened, Schema, SourceFile, no, option, sure


class Wav(Format):
    """PCM of 16 bits in RIFF files."""

    name = "wav"
    suffixes = (".wav",)

    def recognise(self, file: SourceFile) -> Claim:
        head = file.head(12)
        if head[:4] == b"RIFF" and head[8:] == b"WAVE":
            return sure("is a RIFF/WAVE file")
        return no("does not begin as a RIFF/WAVE file")

    @contextmanager
    def open(self, file: SourceFile) -> Iterator[Opened]:
        with wave.open(str(file.path)) as header:
            channels, width, rate, frames = header.getparams()[:4]
        if width != 2:
            raise file.problem(f"has {8 * width} bits a value", "write 16 bits: sox in.wav -b 16 out.wav")
        start = file.head().index(b"data") + 8
        if file.size < start + 2 * channels * frames:
            raise file.problem(f"is {file.size} bytes, its header tells of {frames} frames", "copy it again", "truncated")
        samples = np.memmap(file.path, "<i2", "r", start, (frames, channels)) if frames else np.zeros((0, channels), "<i2")
        yield Opened({"pcm": Array(samples)}, {"rate": rate})

    def write(self, path: Path, arrays: Mapping[str, Array], facts: Mapping[str, int]) -> None:
        pcm = arrays["pcm"]
        with wave.open(str(path), "wb") as file:
            file.setparams((pcm.shape[1], 2, facts["rate"], len(pcm), "NONE", ""))
            for lo in range(0, len(pcm), 1 << 20):
                file.writeframesraw(np.ascontiguousarray(pcm[lo : lo + (1 << 20)], "<i2").tobytes())


@dataclass(frozen=True, kw_only=True)
class Audio(Family):
    """Recordings of sound, cut into clips of equal length."""

    seconds: float = option(1.0, "Length of a clip.", metavar="S", least=0.001)

    name = "audio"
    summary = "Recordings of sound: .wav."
    examples = ("unistore convert audio recordings/ clips.zarr --seconds 0.5",)
    formats = (Wav,)
    schema = Schema(
        table="frames",
        columns={"pcm": Column(kinds="i", axes=("channel",), description="amplitude")},
        samples="clips",
        per_source={"rate": Column(kinds="i", unit="Hz", description="sample rate")},
    )

    def cut(self, opened: Opened) -> Iterator[Cut]:
        frames = len(opened.arrays["pcm"])
        step = max(1, round(self.seconds * opened.facts["rate"]))
        for lo in range(0, frames, step):
            yield Cut(min(step, frames - lo))

    def typical_rows(self, heads: list[Head]) -> int:
        return max(1, round(self.seconds * heads[0].facts["rate"]))
