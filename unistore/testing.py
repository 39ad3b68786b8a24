"""Checks for the test suite of a package that adds a format, a family or a sample kind.

>>> from unistore.testing import check_family, check_format, check_kind  # doctest: +SKIP
>>> check_format(Wav(), "tone.wav", {"pcm": expected})  # doctest: +SKIP
>>> check_family("audio", "recordings/", tmp_path, {"frames/pcm": expected})  # doctest: +SKIP
>>> check_kind("Window(frames=400)", "a.zarr", {0: {"pcm": expected[:400]}})  # doctest: +SKIP

Each check raises an AssertionError that names the broken promise. A family must be installed with its entry
points, because other processes find it by them.
"""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import unistore
from unistore.converters.adapter.formats import calling, formats
from unistore.converters.array import Array
from unistore.converters.opened import Format, Metadata, OpenFile, SourceFile
from unistore.errors import InputError, UnistoreError
from unistore.system.types import AnyArray

# Lengths at which each file is truncated
CUTS = 20
_BEGINNING = 16  # bytes that are made zero
# Of files that many programs write: one without the mark of a format is not damaged
_COMMON_ENDINGS = (".csv", ".json", ".txt", ".xml", ".yaml", ".yml")
_TIMEOUT = 300
_SAMPLES = 16  # that a kind is checked with
_METHODS = ("fork", "spawn")  # by which a Loader starts its workers


def check_format(
    format: Format, file: str | Path, oracle: Mapping[str, AnyArray], metadata: Metadata | None = None
) -> None:
    """Check that a format reads a file as another library does, and reports damage.

    The file is also truncated at 20 lengths. Each of them must raise InputError, unless the format is
    never sure of a file. A copy whose first 16 bytes are zero must raise InputError or be recognised, unless
    the ending belongs to other formats, too: such a file is damaged, and a conversion would skip it without
    an error.

    Parameters
    ----------
    format : Format
        An instance of the format.
    file : path
        A valid file.
    oracle : mapping of str to array
        Its arrays by name, (n, …), read in another way. Without single values, which are metadata.
    metadata : mapping, optional
        Its metadata. None: they are not compared.

    Raises
    ------
    AssertionError
        If the file is not recognised; if arrays, slices of them or metadata differ; if a truncated file is
        read without an error; if a file with a damaged beginning is not recognised; or if a file that the
        format writes reads differently.

    Examples
    --------
    >>> def test_wav(tmp_path):  # doctest: +SKIP
    ...     pcm = np.arange(480, dtype=np.int16)
    ...     scipy.io.wavfile.write(tmp_path / "tone.wav", 48_000, pcm)
    ...     check_format(Wav(), tmp_path / "tone.wav", {"samples": pcm}, {"rate": 48_000})
    """
    path = Path(file)
    same = pickle.loads(pickle.dumps(format))  # noqa: S301  our own bytes
    assert type(same) is type(format), "a format must pickle"
    source = SourceFile(path, path.name)
    claim = format.recognise(source)
    assert claim.certainty != "no", f"{path.name} is not recognised: {claim.reason}"
    with format.open(source) as opened:
        arrays = _arrays_of(opened)
        assert set(arrays) == set(oracle), f"arrays {sorted(arrays)}, expected {sorted(oracle)}"
        for name, expected in oracle.items():
            _check_array(name, arrays[name], expected)
        own_metadata = dict(opened.metadata)
    assert metadata is None or own_metadata == dict(metadata), (
        f"metadata {own_metadata}, expected {dict(metadata or {})}"
    )
    with TemporaryDirectory(prefix="unistore-testing-") as folder:
        for short in _truncated(path, Path(folder)):
            _refuses(format, short)
        if _has_own_ending(format, path):
            _check_damaged_beginning(format, path, Path(folder))
        if type(format).write is not Format.write:
            _check_written(format, path, Path(folder) / f"again{path.suffix}")


def _arrays_of(opened: OpenFile) -> dict[str, Array]:
    return {name: array for name, array in opened.arrays.items() if name not in opened.metadata}


def _check_array(name: str, array: Array, expected: AnyArray) -> None:
    assert array.shape == expected.shape, f"{name} has shape {array.shape}, expected {expected.shape}"
    assert array.dtype == expected.dtype, f"{name} is {array.dtype}, expected {expected.dtype}"
    count = len(expected)
    for lo, hi in ((0, count), (0, 0), (count // 3, count // 2), (max(0, count - 1), count)):
        rows = array[lo:hi]
        assert np.array_equal(rows, expected[lo:hi], equal_nan=rows.dtype.kind == "f"), f"{name}[{lo}:{hi}]"


def _truncated(path: Path, folder: Path) -> Iterable[Path]:
    data = path.read_bytes()
    short = folder / f"short{path.suffix}"
    for cut in range(CUTS):
        short.write_bytes(data[: len(data) * cut // CUTS])
        yield short


def _refuses(format: Format, path: Path) -> None:
    source = SourceFile(path, path.name)
    try:
        with calling(format, path.name):
            claim = format.recognise(source)
            if claim.certainty == "no":
                return
            with format.open(source) as opened:
                for array in opened.arrays.values():
                    array[0 : len(array)]
    except InputError as error:
        _check_problem(error, path)
        return
    if claim.certainty == "maybe":  # nothing in a file without a header says where it ends
        return
    msg = f"a file truncated to {path.stat().st_size} bytes is read without an error"
    raise AssertionError(msg)


def _has_own_ending(format: Format, path: Path) -> bool:
    others = (other.suffixes for other in formats().values() if other.name != format.name)
    return not any(path.name.lower().endswith(suffixes) for suffixes in (_COMMON_ENDINGS, *others))


def _check_damaged_beginning(format: Format, path: Path, folder: Path) -> None:
    damaged = folder / path.name
    data = path.read_bytes()
    damaged.write_bytes(bytes(_BEGINNING) + data[_BEGINNING:])
    try:
        with calling(format, damaged.name):
            claim = format.recognise(SourceFile(damaged, damaged.name))
    except InputError as error:
        _check_problem(error, damaged)
        return
    assert claim.certainty != "no", (
        f"{path.name} is not recognised once its first {_BEGINNING} bytes are zero, so a conversion skips it "
        f"without an error: raise file.wrong_beginning(…) in recognise, as no other format has its ending"
    )


def _check_problem(error: InputError, path: Path) -> None:
    # A damaged file is the file's fault, not that of the code that reads it
    kinds = {problem.kind for problem in error.problems}
    assert "plugin" not in kinds, f"damaged, {path.stat().st_size} bytes: {error}"


def _check_written(format: Format, path: Path, again: Path) -> None:
    with format.open(SourceFile(path, path.name)) as opened:
        arrays = _arrays_of(opened)
        format.write(again, arrays, opened.metadata)
        with format.open(SourceFile(again, again.name)) as reopened:
            assert dict(reopened.metadata) == dict(opened.metadata), "a written file has other metadata"
            for name, array in arrays.items():
                expected = array[0 : len(array)].astype(array.dtype, copy=False)
                _check_array(f"written {name}", reopened.arrays[name], expected)


def check_family(
    family: str,
    sources: str | Path,
    work: str | Path,
    oracle: Mapping[str, AnyArray],
    options: Mapping[str, Any] | None = None,
) -> None:
    """Check that a family keeps the promises of every family.

    This converts, verifies, repairs, exports and reads a small data set, with several processes. It takes
    a minute or two.

    Parameters
    ----------
    family : str
        Name of the family.
    sources : path
        Folder of valid files.
    work : path
        Empty folder for stores.
    oracle : mapping of str to array
        Expected arrays of the store by path, computed in another way.
    options : mapping, optional
        Options of the conversion. None: the defaults.

    Raises
    ------
    AssertionError
        If stored values differ from the oracle. If a dry run writes anything. If the bytes change with
        several workers, or after a kill and a resume. If ``verify`` finds a fault, or ``verify
        --against`` misses a changed byte of a source. If a deleted shard is not repaired to the same
        bytes. If an exported source converts to other values. If there is no page. If a Loader delivers
        other samples with fork or spawn. If a truncated source does not become a Problem.

    Examples
    --------
    >>> def test_audio(tmp_path):  # doctest: +SKIP
    ...     check_family("audio", "tests/recordings", tmp_path, {"frames/samples": expected})
    """
    folder = Path(work)
    chosen = dict(options or {})
    paths = Path(sources)
    _check_dry_run(family, paths, folder / "dry.zarr", chosen)
    store = folder / "store.zarr"
    report = unistore.convert(paths, store, family, **chosen)
    for path, expected in oracle.items():
        stored = unistore.Store(store).array(path).read()
        assert np.array_equal(stored, expected, equal_nan=stored.dtype.kind == "f"), f"{path} differs"
    by_workers = unistore.convert(paths, folder / "workers.zarr", family, workers=2, **chosen)
    assert by_workers.digest == report.digest, "two workers write other bytes"
    assert _killed(family, paths, folder / "killed.zarr", chosen) == report.digest, "a kill changes the bytes"
    _check_verify(paths, store, folder)
    _check_repair(paths, store, folder / "damaged.zarr")
    _check_export(family, store, folder, chosen)
    _run(["inspect", str(store), "--html", str(folder / "page.html")])
    assert "<img" in (folder / "page.html").read_text(), "the page has no picture"
    for method in _METHODS:
        _check_loader(store, method)
    _check_truncated(family, paths, folder / "truncated", chosen)


def _flags(options: Mapping[str, Any]) -> list[str]:
    flags = []
    for name, value in options.items():
        values = value if isinstance(value, (tuple, list)) else [value]
        for single in values:
            flags += [f"--{name.replace('_', '-')}", str(single)]
    return flags


def _command(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "unistore", *arguments]


def _run(arguments: Sequence[str]) -> str:
    done = subprocess.run(_command(arguments), capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    assert done.returncode == 0, f"unistore {' '.join(arguments)}: {done.stderr or done.stdout}"
    return done.stdout


def _check_dry_run(family: str, sources: Path, store: Path, options: Mapping[str, Any]) -> None:
    _run(["convert", family, str(sources), str(store), "--dry-run", *_flags(options)])
    assert not list(store.parent.glob(f"*{store.name}*")), "a dry run writes"


def _killed(family: str, sources: Path, store: Path, options: Mapping[str, Any]) -> str:
    # The conversion goes on afterwards, unless it was faster than the kill
    arguments = ["convert", family, str(sources), str(store), *_flags(options)]
    for delay in (0.3, 0.6):
        process = subprocess.Popen(_command(arguments), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(delay)
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
        process.wait(_TIMEOUT)
    _run(arguments)
    return unistore.Store(store).root.seal.digest


def _check_verify(sources: Path, store: Path, folder: Path) -> None:
    verified = unistore.verify(store, against=sources)
    assert not verified.problems, f"verify --against finds {verified.problems[0]}"
    eighths = range(1, 8)  # from the end: some formats have bytes there that say nothing
    noticed = (_notices(store, sources, folder / f"changed{eighth}", eighth) for eighth in eighths)
    assert any(noticed), "verify --against misses changed bytes of sources"


def _notices(store: Path, sources: Path, changed: Path, eighth: int) -> bool:
    shutil.copytree(sources, changed)
    for file in sorted(path for path in changed.rglob("*") if path.is_file()):
        data = bytearray(file.read_bytes())
        data[-1 - len(data) * eighth // 8] ^= 0x55
        file.write_bytes(data)
    try:
        return bool(unistore.verify(store, against=changed).problems)
    except UnistoreError:
        return True


def _check_repair(sources: Path, store: Path, damaged: Path) -> None:
    shutil.copytree(store, damaged)
    shard = max(damaged.glob("**/c/**/*"), key=lambda path: path.stat().st_size if path.is_file() else 0)
    original = shard.read_bytes()
    shard.unlink()
    unistore.repair(damaged, sources)
    assert shard.read_bytes() == original, f"{shard.name} is repaired to other bytes"


def _check_export(family: str, store: Path, folder: Path, options: Mapping[str, Any]) -> None:
    unistore.export(store, folder / "exported")
    again = folder / "again.zarr"
    unistore.convert(folder / "exported", again, family, **options)
    stored = unistore.Store(store)
    converted_again = unistore.Store(again)
    assert stored.paths() == converted_again.paths(), "an exported source converts to other arrays"
    for path in stored.paths():
        equal = path == "sources/bytes" or np.array_equal(
            stored.array(path).read(), converted_again.array(path).read()
        )
        assert equal, f"{path} differs after an export"


def check_kind(
    kind: Any, store: str | Path, oracle: Mapping[int, Mapping[str, AnyArray | str | list[str]]]
) -> None:
    """Check that a sample kind keeps the promises of every sample kind.

    Parameters
    ----------
    kind : Kind or str
        The sample kind, or its name with options: ``"Window(pings=1)"``.
    store : path
        A store that has such samples.
    oracle : mapping of int to mapping of str to values
        Expected values by key, computed in another way, for some samples by their index.

    Raises
    ------
    AssertionError
        If values differ from the oracle. If a sample depends on its batch, or differs in a copy of the
        Dataset. If an empty batch has other dtypes or row shapes. If a Loader delivers other samples with
        fork or spawn.

    Examples
    --------
    >>> def test_window():  # doctest: +SKIP
    ...     check_kind("Window(pings=2)", "pings.zarr", {0: {"echoes": expected[:2]}})
    """
    dataset = unistore.Dataset(store, kind)
    assert len(dataset), "the store has no samples of this kind"
    for number, expected in oracle.items():
        sample = dataset[number]
        assert set(expected) <= set(sample), f"sample {number} has {sorted(sample)}, not {sorted(expected)}"
        for key, values in expected.items():
            assert _are_equal(sample[key], values), f"{key} of sample {number} is {sample[key]!r:.200}"
    numbers = [*range(min(len(dataset), _SAMPLES)), len(dataset) - 1]
    alone = {number: dataset[number] for number in numbers}
    copied = pickle.loads(pickle.dumps(dataset))  # noqa: S301  our own bytes
    for order in (numbers, numbers[::-1], [*numbers, numbers[0]]):
        for number, sample in zip(order, copied.__getitems__(order), strict=True):
            for key, values in alone[number].items():
                assert _are_equal(sample[key], values), f"{key} of sample {number} depends on its batch"
    forms, of_empty = (_forms_of(unistore.collate(dataset.__getitems__(some))) for some in ([0], []))
    assert forms == of_empty, f"a batch has {forms}, one without samples {of_empty}"
    for method in _METHODS:
        _check_loader(Path(store), method, kind)


def _forms_of(batch: Mapping[str, Any]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return dtype and row shape of each key, by which several stores are read as one."""
    texts = {key: ("text", ()) for key, values in batch.items() if isinstance(values, list)}
    return texts | {
        key: (str(values.dtype), tuple(values.shape[1:])) for key, values in batch.items() if key not in texts
    }


def _are_equal(found: object, expected: object) -> bool:
    if isinstance(expected, (str, list)):
        return found == expected
    values = np.asarray(expected)
    return np.array_equal(np.asarray(found), values, equal_nan=values.dtype.kind == "f")


def _check_loader(store: Path, method: str, kind: Any = None) -> None:
    dataset = unistore.Dataset(store, kind)
    keys = [key for key in dataset[0] if key != "index"]
    loader = unistore.Loader(dataset, batch_size=3, num_workers=2, multiprocessing_context=method)
    delivered = 0
    with loader:
        for batch in loader:
            alone = unistore.collate([dataset[int(index)] for index in batch["index"]])
            for key in keys:
                assert _are_equal(batch[key], alone[key]), f"a Loader under {method} delivers another {key}"
            delivered += len(batch["index"])
    assert delivered == len(dataset), (
        f"a Loader under {method} delivers {delivered} of {len(dataset)} samples"
    )


def _check_truncated(family: str, sources: Path, folder: Path, options: Mapping[str, Any]) -> None:
    first = min(path for path in sources.rglob("*") if path.is_file())
    folder.mkdir()
    for number, short in enumerate(_truncated(first, folder)):
        store = folder / f"{number}.zarr"
        try:
            unistore.convert(short, store, family, **options)
        except InputError as error:
            _check_problem(error, short)
        else:
            msg = f"a source truncated to {short.stat().st_size} bytes is converted"
            raise AssertionError(msg)
        assert not store.exists(), "a refused source leaves a store"
