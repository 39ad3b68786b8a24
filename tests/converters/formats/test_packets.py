"""Video whose packets a store keeps: frames as PyAV decodes them from the source, whoever reads them."""

from __future__ import annotations

import json
import pickle
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray

import unistore
from unistore.converters.formats.packets import (
    KeptVideo,
    Packet,
    RecordHead,
    groups,
    head_of,
    images_in,
    record_of,
    rgb,
)
from unistore.converters.formats.video import Frames
from unistore.converters.opened import SourceFile
from unistore.errors import InputError, MissingLibraryError, Problem, StoreError

SAMPLE = Path(__file__).parents[2] / "data/lerobot/v3"
VIDEO = "videos/observation.images.top/chunk-000/file-000.mp4"
KEY = "observation.images.top"
GROUP = "steps/observation/images.top_video"
SIZE = (64, 96)
LENGTHS = (7, 5, 9)
FPS = 10


def pictures(count: int = sum(LENGTHS)) -> NDArray[np.uint8]:
    grain = np.random.default_rng(0).integers(0, 60, (*SIZE, 3))
    slope = np.add.outer(np.arange(SIZE[0]), np.arange(SIZE[1]))[..., None]
    return np.stack([(slope + 9 * step) % 190 + grain for step in range(count)]).astype(np.uint8)


def encode(
    path: Path, codec: str, count: int = sum(LENGTHS), pixels: str = "yuv420p", **options: str
) -> Path:
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream(codec, rate=FPS, options=options)
        stream.height, stream.width = SIZE
        stream.pix_fmt = pixels
        for image in pictures(count):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode())
    return path


def decoded(path: Path) -> NDArray[np.uint8]:
    """Decode a file from its beginning to its end."""
    with av.open(str(path)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


def packets_of(path: Path) -> list[bytes]:
    with av.open(str(path)) as container:
        return [bytes(packet) for packet in container.demux(video=0) if packet.size]


def parts_of(record: bytes) -> tuple[dict[str, Any], bytes]:
    stop = 4 + int.from_bytes(record[:4], "little")
    return json.loads(record[4:stop]), record[stop:]


def dataset(folder: Path, codec: str, **options: str) -> Path:
    """A LeRobot dataset of three episodes in one file of video."""
    root = Path(shutil.copytree(SAMPLE, folder / "lerobot"))
    encode(root / VIDEO, codec, **options)
    info = json.loads((root / "meta/info.json").read_text())
    info["features"][KEY]["shape"] = [*SIZE, 3]
    (root / "meta/info.json").write_text(json.dumps(info))
    return root


def kept(root: Path, **options: Any) -> Path:
    store = root.with_suffix(".zarr")
    unistore.convert(root, store, family="trajectory", video="keep", workers=0, **options)
    return store


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dataset(tmp_path_factory.mktemp("video"), "libx264", g="10", bf="3", sc_threshold="0")


@pytest.fixture(scope="module")
def store(source: Path) -> Path:
    return kept(source)


def frames(store: Path, **loader: Any) -> NDArray[np.uint8]:
    """Read all frames, (steps, height, width, 3), by a Loader."""
    steps = unistore.Dataset(store, unistore.Transitions(), fields=[KEY])
    with unistore.Loader(steps, batch_size=4, **loader) as batches:
        images = np.concatenate([batch[KEY].numpy() for batch in batches])
    return np.moveaxis(images, 1, -1)


CODECS: list[tuple[str, dict[str, str]]] = [
    ("libx264", {"g": "2", "bf": "0"}),
    ("libx264", {"g": "100", "bf": "2", "x264-params": "open-gop=1:keyint=6"}),
    ("libx264", {"g": "12", "color_range": "pc", "colorspace": "bt709"}),
    ("libx265", {"x265-params": "log-level=none:keyint=6:open-gop=1"}),
    ("libsvtav1", {"g": "2"}),
    ("libvpx-vp9", {"g": "6"}),
]


@pytest.mark.parametrize(("codec", "options"), CODECS)
def test_kept_packets_of_a_part_of_a_video_decode_to_its_frames(
    codec: str, options: dict[str, str], tmp_path: Path
) -> None:
    path = encode(tmp_path / "video.mp4", codec, **options)
    packets = packets_of(path)
    expected = decoded(path)
    for start, length in [(0, 7), (7, 5), (12, 9)]:
        video = Frames(SourceFile(path, path.name, (tmp_path,)), SIZE, start / FPS, length, FPS)
        images: list[NDArray[np.uint8]] = []
        for record, steps in video.kept(0, length):
            said, content = parts_of(record.tobytes())
            assert content in b"".join(packets)
            assert len(said["sizes"]) >= steps
            for step in range(steps):
                images += images_in(record, [step], SIZE, "where")
        np.testing.assert_array_equal(images, expected[start : start + length])


def test_packets_are_kept_from_the_key_frame_before_each_episode(source: Path, store: Path) -> None:
    stored = unistore.Store(store)
    group = GROUP
    offsets = stored.array(f"{group}/offsets").read()
    data = stored.array(f"{group}/data").read().tobytes()
    packets = packets_of(source / VIDEO)
    firsts = {0: 0, 7: 0, 10: 10, 12: 10, 20: 20}  # row of a group, and its key frame
    assert np.flatnonzero(np.diff(offsets)).tolist() == list(firsts)
    for row, first in firsts.items():
        said, content = parts_of(data[offsets[row] : offsets[row + 1]])
        assert b"".join(packets[first : first + len(said["sizes"])]) == content
        assert (said["codec"], said["pixel_format"], tuple(said["size"])) == ("h264", "yuv420p", SIZE)


def test_workers_forked_after_decoding_deliver_the_frames(source: Path, store: Path) -> None:
    frames(store, num_workers=0)
    images = frames(store, num_workers=2, multiprocessing_context="fork")
    np.testing.assert_array_equal(images, decoded(source / VIDEO))


def test_windows_and_episodes_deliver_the_frames_of_kept_video(source: Path, store: Path) -> None:
    expected = np.moveaxis(decoded(source / VIDEO), -1, 1)
    windows = unistore.Dataset(store, unistore.Windows(history=3, horizon=1, pad="edge"))
    np.testing.assert_array_equal(windows[8][KEY], expected[[7, 7, 8]])
    again = pickle.loads(pickle.dumps(windows))  # as workers get it that are not forked
    np.testing.assert_array_equal(again[8][KEY], expected[[7, 7, 8]])
    np.testing.assert_array_equal(unistore.Dataset(store, unistore.Episodes())[1][KEY], expected[7:12])


def test_exports_and_statistics_of_kept_video_equal_those_of_frames(
    source: Path, store: Path, tmp_path: Path
) -> None:
    plain = tmp_path / "frames.zarr"
    unistore.convert(source, plain, family="trajectory", workers=0)
    for form in ("lerobot", "robomimic"):
        for path, name in ((plain, "frames"), (store, "kept")):
            unistore.export(path, tmp_path / name / form, to=form)
    written = [file for file in (tmp_path / "frames").rglob("*") if file.suffix in (".parquet", ".json")]
    assert len(written) == 5
    for file in written:
        assert file.read_bytes() == (tmp_path / "kept" / file.relative_to(tmp_path / "frames")).read_bytes()
    unistore.convert(tmp_path / "kept/robomimic", tmp_path / "again.zarr", family="trajectory", workers=0)
    again = unistore.Dataset(tmp_path / "again.zarr")
    np.testing.assert_array_equal(again[20]["observation.images.top"], unistore.Dataset(plain)[20][KEY])
    statistics = [unistore.Dataset(path).statistics(KEY) for path in (plain, store)]
    assert repr(statistics[0]) == repr(statistics[1])
    assert not unistore.verify(store, against=source).problems


def test_inspect_names_packets_of_video(store: Path) -> None:
    assert f"{GROUP}/data: packets of video" in str(unistore.inspect(store))


def test_kept_video_may_have_a_resized_copy_but_not_instead_of_it(source: Path, tmp_path: Path) -> None:
    store = tmp_path / "small.zarr"
    unistore.convert(source, store, family="trajectory", video="keep", image_size=32, workers=0)
    assert unistore.Dataset(store)[3][f"{KEY}_32"].shape == (3, 32, 32)
    with pytest.raises(InputError, match=r"--images resized.*remove one of them"):
        unistore.convert(source, store, family="trajectory", video="keep", images="resized", image_size=32)


def test_episodes_without_video_have_frames_of_zeros(source: Path, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        shutil.copytree(source, tmp_path / "all" / name)
    info = tmp_path / "all/b/meta/info.json"
    said = json.loads(info.read_text())
    del said["features"][KEY]
    info.write_text(json.dumps(said))
    images = frames(kept(tmp_path / "all", columns="union"), num_workers=0)
    expected = decoded(source / VIDEO)
    np.testing.assert_array_equal(images, np.concatenate([expected, 0 * expected, expected]))


@pytest.mark.parametrize(("version", "options"), [("15.1.0", {}), ("17.0.0", {"threads": 1})])
def test_images_are_converted_in_one_thread_by_every_pyav(
    version: str, options: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyAV before 17 has no argument for the number of threads, and converts in one."""

    class Frame:
        def to_ndarray(self, **given: Any) -> NDArray[np.uint8]:
            assert given == {"format": "rgb24", **options}
            return np.zeros((2, 3, 3), np.uint8)

    monkeypatch.setattr(av, "__version__", version)
    assert rgb(Frame()).shape == (2, 3, 3)


def test_a_missing_library_is_named(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(MissingLibraryError, match=r"pip install 'unistore\[robots\]'"):
        unistore.Dataset(store).read_batch([0])


# What is wrong with sources.


def test_an_unsupported_codec_is_an_error(tmp_path: Path) -> None:
    root = dataset(tmp_path, "mjpeg", pixels="yuvj420p")
    with pytest.raises(InputError, match=r"file-000\.mp4: has the codec mjpeg.*remove --video keep"):
        kept(root)


def test_a_video_shorter_than_its_episodes_is_an_error(source: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(source, tmp_path / "lerobot"))
    encode(root / VIDEO, "libx264", sum(LENGTHS) - 2)
    with pytest.raises(InputError, match=r"file-000\.mp4: ends after 1\.90 s, but step 8 is at 2\.00 s"):
        kept(root)


# What is wrong with a store.

Changed = dict[str, Any]


@pytest.fixture(scope="module")
def coded(source: Path) -> tuple[RecordHead, list[Packet]]:
    with av.open(str(source / VIDEO)) as container:
        said = head_of(container.streams.video[0])
        demuxed = [packet for packet in container.demux(video=0) if packet.size]
    packets = [Packet(packet.pts or 0, packet.is_keyframe, bytes(packet)) for packet in demuxed]
    return said, list(next(groups(packets)))


def damaged(
    coded: tuple[RecordHead, list[Packet]], change: Callable[[Changed], bytes | None]
) -> NDArray[np.uint8]:
    steps = sorted(packet.time for packet in coded[1])
    said, content = parts_of(record_of(*coded, steps).tobytes())
    changed = change(said)
    text = json.dumps(said).encode()
    rest = changed if isinstance(changed, bytes) else content
    return np.frombuffer(len(text).to_bytes(4, "little") + text + rest, np.uint8)


DAMAGES: list[tuple[Callable[[Changed], Any], str]] = [
    (lambda said: b"short", "are stored"),
    (lambda said: said.update(sizes=[*said["sizes"][:-1], 1 << 60]), "are stored"),
    (lambda said: said.update(sizes=[-1, said["sizes"][0] + 1, *said["sizes"][1:]]), "size of -1"),
    (lambda said: said.update(sizes="many"), ""),
    (lambda said: said.update(times=said["times"][:-3]), "list"),
    (lambda said: said.update(sizes=[]), "empty"),
    (lambda said: said.pop("colour"), "colour"),
    (lambda said: said.update(colour=[1 << 70] * 4), ""),
    (lambda said: said.update(extradata=""), "Invalid data"),
    (lambda said: said.update(extradata="nothing"), "non-hexadecimal"),
    (lambda said: said.update(codec="rawvideo"), "rawvideo"),
    (lambda said: said.update(steps=said["steps"][:3]), "out of range"),
    (lambda said: said.update(steps=[*said["steps"][:-1], 7]), "7"),
]


@pytest.mark.parametrize(("change", "message"), DAMAGES)
def test_a_damaged_record_of_packets_is_an_error(
    coded: Any, change: Callable[[Changed], Any], message: str
) -> None:
    with pytest.raises(InputError, match=rf"where: .*contains a video that cannot be decoded: .*{message}"):
        list(images_in(damaged(coded, change), range(len(coded[1])), SIZE, "where"))


def test_a_damaged_packet_or_a_frame_of_another_size_is_an_error(coded: Any) -> None:
    said, packets = coded
    cut = [packets[0]._replace(content=packets[0].content[:40]), *packets[1:]]
    for content, size, message in [
        (cut, SIZE, "decoded"),
        (packets, (32, 96), "64 x 96 pixels, not 32 x 96"),
    ]:
        with pytest.raises(InputError, match=message):
            list(images_in(record_of(said, content, [packets[0].time]), [0], size, "where"))
    with pytest.raises(InputError, match=r"Invalid (argument|data)"):  # more pixels than are allowed
        list(images_in(record_of(said, packets, [packets[0].time]), [0], (-127, 1), "where"))


def test_a_record_that_cannot_be_decoded_is_an_error_that_names_its_row(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Any:
        raise InputError(Problem("row", "cannot be decoded", kind="damaged"))

    monkeypatch.setattr("unistore.converters.formats.packets.images_in", refuse)
    video = KeptVideo(unistore.Store(store), GROUP)
    with pytest.raises(StoreError, match="row 0 cannot be decoded"):
        video.read(np.arange(2))
