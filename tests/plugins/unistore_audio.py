"""Recordings of sound as a package of somebody else: one format, one family of ragged samples."""

import wave
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from unistore import plugin


class Wav(plugin.Format):
    """PCM of 16 bits in RIFF files."""

    name = "wav"
    suffixes = (".wav",)

    def recognise(self, file: plugin.SourceFile) -> plugin.Claim:
        head = file.head(12)
        if head[:4] == b"RIFF" and head[8:] == b"WAVE":
            return plugin.sure("is a RIFF/WAVE file")
        raise file.wrong_beginning("as a RIFF/WAVE file")

    @contextmanager
    def open(self, file: plugin.SourceFile) -> Iterator[plugin.OpenFile]:
        with wave.open(str(file.path)) as header:
            channels, width, rate, frames = header.getparams()[:4]
        if width != 2:
            raise file.problem(f"has {8 * width} bits a value", "write 16 bits: sox in.wav -b 16 out.wav")
        start = file.head().index(b"data") + 8
        if file.size < start + 2 * channels * frames:
            message = f"has {file.size:,} bytes, but its header states {frames:,} frames"
            raise file.problem(message, "copy it again", "truncated")
        pcm = np.zeros((0, channels), "<i2")
        if frames:
            pcm = np.memmap(file.path, "<i2", "r", start, (frames, channels))
        yield plugin.OpenFile({"pcm": plugin.Array(pcm)}, {"rate": rate})

    def write(self, path: Path, arrays: Mapping[str, plugin.Array], metadata: Mapping[str, int]) -> None:
        pcm = arrays["pcm"]
        with wave.open(str(path), "wb") as file:
            file.setparams((pcm.shape[1], 2, metadata["rate"], len(pcm), "NONE", ""))
            for lo in range(0, len(pcm), 1 << 20):
                file.writeframesraw(np.ascontiguousarray(pcm[lo : lo + (1 << 20)], "<i2").tobytes())


@dataclass(frozen=True, kw_only=True)
class Audio(plugin.Family):
    """Recordings of sound, cut into clips of equal length."""

    seconds: float = plugin.option(1.0, "Length of a clip.", metavar="S", least=0.001)

    name = "audio"
    summary = "Recordings of sound: .wav."
    examples = ("unistore convert audio recordings/ clips.zarr --seconds 0.5",)
    formats = (Wav,)
    schema = plugin.Schema(
        table="frames",
        columns={"pcm": plugin.Column(kinds="i", axes=("channel",), description="amplitude")},
        samples="clips",
        per_source={"rate": plugin.Column(kinds="i", unit="Hz", description="sample rate")},
    )

    def cut(self, opened: plugin.OpenFile) -> Iterator[plugin.Cut]:
        frames = len(opened.arrays["pcm"])
        step = max(1, round(self.seconds * opened.metadata["rate"]))
        for lo in range(0, frames, step):
            yield plugin.Cut(min(step, frames - lo))

    def typical_rows(self, head: plugin.FileSummary) -> int:
        return max(1, round(self.seconds * head.metadata["rate"]))
