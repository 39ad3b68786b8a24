"""Small files whose headers tell of gigabytes, for every format that takes memory by a header."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import laspy
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydicom.data import get_testdata_file

WIDE = 65_000  # pixels of a side that fits 16 bits


def pcd(path: Path, data: str, points: int, body: bytes, count: str = "1 1 1") -> None:
    header = f"VERSION 0.7\nFIELDS x y z\nSIZE 4 4 4\nTYPE F F F\nCOUNT {count}\nWIDTH {points}\nHEIGHT 1\n"
    path.write_bytes(f"{header}POINTS {points}\nDATA {data}\n".encode() + body)


def pcd_lzf(folder: Path) -> None:
    body = struct.pack("<II", 100, 3_600_000_000) + bytes(100)
    pcd(folder / "a.pcd", "binary_compressed", 300_000_000, body)


def pcd_text(folder: Path) -> None:
    pcd(folder / "a.pcd", "ascii", 300_000_000, b"1 2 3\n" * 9)


def pcd_wide_text(folder: Path) -> None:
    pcd(folder / "a.pcd", "ascii", 2, b"1 2 3\n" * 2, f"1 1 {1 << 29}")


def pcd_without_values(folder: Path) -> None:
    pcd(folder / "a.pcd", "binary", 1 << 40, bytes(100), "0 0 0")


def ply(path: Path, form: str, elements: str, body: bytes) -> None:
    path.write_bytes(f"ply\nformat {form} 1.0\n{elements}end_header\n".encode() + body)


VERTICES = "element vertex {}\nproperty float x\nproperty float y\nproperty float z\n"


def ply_text(folder: Path) -> None:
    ply(folder / "a.ply", "ascii", VERTICES.format(1 << 31), b"1 2 3\n" * 9)


def ply_behind_others(folder: Path) -> None:
    faces = f"element face {1 << 40}\nproperty float a\n"
    ply(folder / "a.ply", "ascii", faces + VERTICES.format(9), b"1 2 3\n" * 9)


def ply_without_values(folder: Path) -> None:
    ply(folder / "a.ply", "binary_little_endian", f"element vertex {1 << 40}\n", b"")


def las(folder: Path, ending: str) -> Path:
    data = laspy.LasData(laspy.LasHeader(point_format=6, version="1.4"))
    data.x = data.y = data.z = np.arange(100.0)
    path = folder / f"a.{ending}"
    data.write(path)
    return path


def changed(path: Path, start: int, form: str, *numbers: int) -> None:
    content = bytearray(path.read_bytes())
    struct.pack_into(form, content, start, *numbers)
    path.write_bytes(content)


def las_points(folder: Path, ending: str) -> None:
    changed(las(folder, ending), 247, "<Q", 1 << 36)


def laz_chunks(folder: Path) -> None:
    path = las(folder, "laz")
    start = struct.unpack_from("<I", path.read_bytes(), 96)[0]
    table = struct.unpack_from("<q", path.read_bytes(), start)[0]
    changed(path, table + 4, "<I", 0xFFFFFFFF)


def las_records(folder: Path) -> None:
    changed(las(folder, "las"), 243, "<I", 0x7FFFFFFF)


def nifti(folder: Path, name: str, shape: tuple[int, ...], code: int, bits: int, body: bytes) -> None:
    header = bytearray(352)
    struct.pack_into("<i", header, 0, 348)
    struct.pack_into("<8h", header, 40, len(shape), *shape, *[1] * (7 - len(shape)))
    struct.pack_into("<2h", header, 70, code, bits)
    struct.pack_into("<8f", header, 76, *[1.0] * 8)
    struct.pack_into("<3f", header, 108, 352, 1, 0)
    header[344:348] = b"n+1\0"
    content = bytes(header) + body
    (folder / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)


def nifti_gz(folder: Path) -> None:
    nifti(folder, "a.nii.gz", (32767, 32767, 9), 64, 64, bytes(9))


def nifti_extension(folder: Path) -> None:
    """An extension before the voxels that a gzip of 2 MB inflates to 2 GB."""
    nifti(folder, "a.nii", (4, 4, 4), 4, 16, b"")
    header = bytearray((folder / "a.nii").read_bytes())
    (folder / "a.nii").unlink()
    size = 1_900_000_000
    struct.pack_into("<f", header, 108, size)
    header[348] = 1
    with gzip.open(folder / "a.nii.gz", "wb", 1) as file:
        file.write(header + struct.pack("<2i", size - 352, 6))
        for _ in range(size // (1 << 24)):
            file.write(bytes(1 << 24))


def nrrd(folder: Path, encoding: str, sizes: str, body: bytes, more: str = "") -> None:
    header = f"NRRD0004\ntype: double\ndimension: 3\nsizes: {sizes}\nencoding: {encoding}\nendian: little\n"
    (folder / "a.nrrd").write_bytes(f"{header}{more}\n".encode() + body)


def nrrd_gzip(folder: Path) -> None:
    nrrd(folder, "gzip", f"{WIDE} {WIDE} 9", gzip.compress(bytes(9)))


def nrrd_lines(folder: Path) -> None:
    nrrd(folder, "raw", "2 2 2", bytes(64), f"line skip: {1 << 40}\n")


def metaimage(folder: Path, sizes: str, voxels: bytes) -> None:
    header = f"ObjectType = Image\nNDims = 3\nBinaryData = True\nCompressedData = True\nDimSize = {sizes}\n"
    header += "ElementType = MET_DOUBLE\nElementDataFile = LOCAL\n"
    (folder / "a.mha").write_bytes(header.encode() + voxels)


def deflated_zeros(count: int) -> bytes:
    """Return a zlib stream of zeros, of which blocks are made once."""
    packer = zlib.compressobj(9, wbits=-15)
    block = packer.compress(bytes(1 << 24)) + packer.flush(zlib.Z_FULL_FLUSH)
    packer = zlib.compressobj(9, wbits=-15)
    last = packer.compress(bytes(count % (1 << 24))) + packer.flush()
    checksum = (count % 65521) << 16 | 1  # Adler-32
    return b"\x78\xda" + (count >> 24) * block + last + checksum.to_bytes(4, "big")


def metaimage_lying(folder: Path) -> None:
    metaimage(folder, f"{WIDE} {WIDE} 9", zlib.compress(bytes(9)))


def metaimage_bomb(folder: Path) -> None:
    metaimage(folder, "2 2 2", deflated_zeros(1 << 30))


def tiff(folder: Path, compression: int, encoded: bytes) -> None:
    """Write two pages of which the header tells 65,000 pixels a side, in one strip each."""
    tags = [(256, WIDE), (257, WIDE), (258, 8), (259, compression), (262, 1), (273, 300), (277, 1)]
    tags += [(278, WIDE), (279, len(encoded))]
    entries = b"".join([struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags])
    page = struct.pack("<H", len(tags)) + entries
    head = b"II*\0" + struct.pack("<I", 8) + page
    head += struct.pack("<I", len(head) + 4) + page + bytes(4)
    (folder / "a.tif").write_bytes(head.ljust(300, b"\0") + encoded)


def lzma_zeros(count: int) -> bytes:
    packer = lzma.LZMACompressor(preset=0)
    parts = [packer.compress(bytes(1 << 24)) for _ in range(count >> 24)]
    return b"".join([*parts, packer.flush()])


def dicom(name: str) -> Callable[[Path], None]:
    """Rows and columns of a packed slice that were set to 65,535."""

    def make(folder: Path) -> None:
        found = get_testdata_file(name, download=False)
        assert found is not None
        content = bytearray(Path(found).read_bytes())
        for tag in (b"\x28\x00\x10\x00US", b"\x28\x00\x11\x00US"):
            struct.pack_into("<H", content, content.index(tag) + 8, 65535)
        (folder / "a.dcm").write_bytes(content)

    return make


def npz(folder: Path, shape: tuple[int, ...], method: int, *, fortran: bool = False) -> None:
    header = io.BytesIO()
    form = {"descr": "<f8", "fortran_order": fortran, "shape": shape}
    np.lib.format.write_array_header_1_0(header, form)
    archive = zipfile.ZipFile(folder / "a.npz", "w", method, compresslevel=9)
    with archive, archive.open("x.npy", "w", force_zip64=True) as file:
        file.write(header.getvalue())
        for _ in range(int(np.prod(shape)) * 8 >> 24):
            file.write(bytes(1 << 24))


def npz_fortran(method: int) -> Callable[[Path], None]:
    return lambda folder: npz(folder, (1 << 18, 1 << 9), method, fortran=True)


def npy_without_values(folder: Path, shape: tuple[int, ...]) -> None:
    with (folder / "a.npy").open("wb") as file:
        form = {"descr": "<f8", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, form)


def zarr(folder: Path, compressor: Any, chunks: list[int], shape: list[int], chunk: bytes | None) -> None:
    root = folder / "a.zarr"
    described = {"zarr_format": 2, "dtype": "<f8", "fill_value": 0, "order": "C", "filters": None}
    arrays = {
        "meta/episode_ends": ([1], [1], np.array([float(shape[0])]).astype("<i8").tobytes(), None, "<i8"),
        "data/action": (shape, chunks, chunk, compressor, "<f8"),
    }
    for name, (extents, of_chunk, content, codec, dtype) in arrays.items():
        (root / name).mkdir(parents=True)
        for group in (root, (root / name).parent):
            (group / ".zgroup").write_text('{"zarr_format": 2}')
        text = {**described, "shape": extents, "chunks": of_chunk, "compressor": codec, "dtype": dtype}
        (root / name / ".zarray").write_text(json.dumps(text))
        if content is not None:
            (root / name / ".".join("0" * len(extents))).write_bytes(content)


def zarr_blosc(folder: Path) -> None:
    import numcodecs

    chunk = numcodecs.Blosc("zstd", 9).encode(np.zeros(1 << 27))
    codec = {"id": "blosc", "cname": "zstd", "clevel": 9, "shuffle": 1, "blocksize": 0}
    zarr(folder, codec, [1 << 14, 1 << 13], [1 << 14, 1 << 13], chunk)


def zarr_absent(folder: Path) -> None:
    zarr(folder, None, [1 << 14, 1 << 13], [1 << 14, 1 << 30], None)


def zarr_long(folder: Path) -> None:
    zarr(folder, None, [1, 1], [1 << 20, 1 << 30], None)


def zarr_zlib(folder: Path) -> None:
    chunk = deflated_zeros(1 << 30)
    zarr(folder, {"id": "zlib", "level": 9}, [1 << 14, 1 << 13], [1 << 14, 1 << 13], chunk)


def parquet(folder: Path, column: pa.Array, **options: Any) -> None:
    pq.write_table(pa.table({"a": column}), folder / "a.parquet", row_group_size=1 << 28, **options)


def parquet_constant(folder: Path) -> None:
    """A column of one value, 268 million times, in a few kilobytes."""
    ones = pa.DictionaryArray.from_arrays(pa.array(np.zeros(1 << 28, "i1")), pa.array([1.5]))
    parquet(folder, ones)


def parquet_wide(folder: Path) -> None:
    zeros = pa.array(np.zeros(1 << 28, "i1"))
    parquet(folder, pa.FixedSizeListArray.from_arrays(zeros, 1 << 27), compression="zstd")


def hdf5(folder: Path, name: str = "a.h5", **options: Any) -> None:
    with h5py.File(folder / name, "w") as file:
        file.create_dataset("data", **options)


def hdf5_chunk(folder: Path) -> None:
    chunk = (1 << 14, 1 << 15)
    with h5py.File(folder / "a.h5", "w") as file:
        data = file.create_dataset("data", chunk, "f4", chunks=chunk, compression="gzip")
        data.id.write_direct_chunk((0, 0), zlib.compress(bytes(1000)))


def hdf5_with_a_chunk(path: Path, shape: tuple[int, int]) -> None:
    """Write the first of many chunks. The others have the fill value."""
    with h5py.File(path, "w") as file:
        data = file.create_dataset("data", shape, "f4", chunks=(1, 1 << 18), compression="gzip")
        data[0, : 1 << 18] = 0


def hdf5_rows(folder: Path) -> None:
    hdf5_with_a_chunk(folder / "a.h5", (4, 1 << 34))


def hdf5_text(folder: Path) -> None:
    hdf5(folder, shape=(3,), dtype=f"S{(1 << 31) - 1}")


def png(path: Path, side: int, body: bytes) -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    packed = chunk(b"IDAT", zlib.compress(body))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + packed + chunk(b"IEND", b""))


def png_lying(folder: Path) -> None:
    png(folder / "a.png", 65535, bytes(999))


def rlds(folder: Path, shape: str) -> None:
    import google_crc32c

    def masked(raw: bytes) -> bytes:
        crc = int(google_crc32c.value(raw))
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    def field(number: int, content: bytes) -> bytes:
        size = bytearray()
        length = len(content)
        while length > 127:
            size.append(length & 127 | 128)
            length >>= 7
        return bytes([number << 3 | 2]) + bytes(size) + bytes([length]) + content

    numbers = field(2, field(1, np.zeros(64, "<f4").tobytes()))
    entry = field(1, field(1, b"steps/action") + field(2, numbers))
    example = field(1, entry)
    length = struct.pack("<Q", len(example))
    record = length + masked(length) + example + masked(example)
    (folder / "a-train.tfrecord-00000-of-00001").write_bytes(record)
    tensor = {"tensor": {"shape": {"dimensions": [shape]}, "dtype": "float32", "encoding": "none"}}
    tensor["pythonClassName"] = "a.Tensor"  # type: ignore[assignment]
    inner = {"featuresDict": {"features": {"action": tensor}}}
    steps = {"sequence": {"feature": inner}}
    features = {"featuresDict": {"features": {"steps": steps}}}
    (folder / "features.json").write_text(json.dumps(features))


ATTACKS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "pcd_lzf": ("point-cloud", pcd_lzf),
    "pcd_text": ("point-cloud", pcd_text),
    "pcd_wide_text": ("point-cloud", pcd_wide_text),
    "pcd_without_values": ("rows", pcd_without_values),
    "ply_text": ("point-cloud", ply_text),
    "ply_behind_others": ("point-cloud", ply_behind_others),
    "ply_without_values": ("rows", ply_without_values),
    "las_points": ("point-cloud", lambda folder: las_points(folder, "las")),
    "laz_points": ("point-cloud", lambda folder: las_points(folder, "laz")),
    "laz_chunks": ("point-cloud", laz_chunks),
    "las_records": ("point-cloud", las_records),
    "nifti_gz": ("ct", nifti_gz),
    "nifti_extension": ("ct", nifti_extension),
    "nrrd_gzip": ("ct", nrrd_gzip),
    "nrrd_lines": ("ct", nrrd_lines),
    "metaimage_lying": ("ct", metaimage_lying),
    "metaimage_bomb": ("ct", metaimage_bomb),
    "tiff_deflate": ("ct", lambda folder: tiff(folder, 8, zlib.compress(bytes(1000)))),
    "tiff_packbits": ("ct", lambda folder: tiff(folder, 32773, bytes([129, 0] * 9))),
    "tiff_lzma": ("ct", lambda folder: tiff(folder, 34925, lzma.compress(bytes(1000)))),
    "tiff_bomb": ("ct", lambda folder: tiff(folder, 34925, lzma_zeros(WIDE**2))),
    "dicom_rle": ("ct", dicom("MR_small_RLE.dcm")),
    "dicom_jpeg2000": ("ct", dicom("MR_small_jp2klossless.dcm")),
    "dicom_jpeg_ls": ("ct", dicom("MR_small_jpeg_ls_lossless.dcm")),
    "dicom_plain": ("ct", dicom("CT_small.dcm")),
    "npz_fortran_deflate": ("rows", npz_fortran(zipfile.ZIP_DEFLATED)),
    "npz_fortran_bzip2": ("rows", npz_fortran(zipfile.ZIP_BZIP2)),
    "npz_fortran_lzma": ("rows", npz_fortran(zipfile.ZIP_LZMA)),
    "npz_row": ("rows", lambda folder: npz(folder, (1, 1 << 27), zipfile.ZIP_DEFLATED)),
    "npy_no_columns": ("rows", lambda folder: npy_without_values(folder, (1 << 40, 0))),
    "npy_no_rows": ("rows", lambda folder: npy_without_values(folder, (0, 1 << 30))),
    "zarr_blosc": ("trajectory", zarr_blosc),
    "zarr_absent": ("trajectory", zarr_absent),
    "zarr_long": ("trajectory", zarr_long),
    "zarr_zlib": ("trajectory", zarr_zlib),
    "parquet_constant": ("rows", parquet_constant),
    "parquet_wide": ("rows", parquet_wide),
    "hdf5_chunk": ("rows", hdf5_chunk),
    "hdf5_rows": ("rows", hdf5_rows),
    "hdf5_text": ("rows", hdf5_text),
    "png": ("ct", png_lying),
    "rlds_shape": ("trajectory", lambda folder: rlds(folder, str(1 << 40))),
}
