"""Open NIfTI volumes, ``.nii`` and ``.nii.gz``."""

# https://nifti.nimh.nih.gov. The array has the axes of the file in reverse, the slowest first, as SimpleITK
# gives them: array[k, j, i].

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from unistore.converters.array import Array
from unistore.converters.formats.volumes import (
    MOST_DEFLATE,
    RAS_TO_LPS,
    Planes,
    Scaling,
    VolumeFormat,
    is_compressed,
    origin_of,
    reading,
    stated,
    steps_of,
    stream_of,
)
from unistore.converters.opened import Metadata, OpenFile, SourceFile
from unistore.system.types import Dtype, JsonObject

_LONG = 540  # bytes of the header of NIfTI-2; that of NIfTI-1 has 348
# By the length of a header: where it says that the voxels are in the same file, and how.
_MAGIC = {348: (344, b"n+1\0"), _LONG: (4, b"n+2\0\r\n\x1a\n")}
_MILLIMETRES = {1: 1000.0, 2: 1.0, 3: 1e-3}  # by the unit of lengths: metre, millimetre, micrometre
_MOST = 32767  # voxels of an axis that NIfTI-1 counts
_SFORM_TAKEN = "its sform and qform differ; the place is from sform, and both are kept in the header"


class Nifti(VolumeFormat):
    """One array, called ``image``."""

    name = "nifti"
    suffixes = (".nii", ".nii.gz")
    twins = (".nii", ".nii.gz")

    def begins(self, file: SourceFile) -> bool:
        return _header_bytes(file) > 0

    @contextmanager
    def open(self, file: SourceFile) -> Iterator[OpenFile]:
        nibabel = file.library("nibabel", "medical")
        kind = nibabel.Nifti2Header if _header_bytes(file) == _LONG else nibabel.Nifti1Header
        with stream_of(file, gzip=is_compressed(file)) as stream:
            with reading(file):  # without extensions, which may state any size
                header = kind(stream.read(kind.sizeof_hdr), check=False)
            taken = _mend(header)
            _check_numbers(file, header)
            shape = header.get_data_shape()
            while len(shape) > 3 and shape[-1] == 1:
                shape = shape[:-1]
            dtype = _dtype(file, header)
            start = header.get_data_offset()
            is_inside = start < kind.single_vox_offset
            if is_inside:
                start = _start_by_size(file, header, prod(map(int, shape)) * dtype.itemsize)
                taken.append(
                    f"vox_offset is {header.get_data_offset()}, so voxels were read from byte {start} on"
                )
            # Where only the size told the first voxel, no byte may follow the last one
            planes = Planes(file, stream, start, shape[::-1], dtype, _scaling(header), is_all=is_inside)
            if is_compressed(file):
                file.check_packed(planes.start + planes.nbytes, file.size, MOST_DEFLATE)
            else:
                planes.check_size(file.size - planes.start)
            metadata = _metadata(header)
            taken += [_SFORM_TAKEN] if _contradicts(metadata["header"]) else []
            for form in ("sform", "qform"):
                if header[f"{form}_code"] and metadata["header"][form] is None:
                    taken.append(f"{form} has no extent, and was not used")
            notes = {"image": "; ".join(taken)} if taken else {}
            yield OpenFile({"image": Array(planes)}, metadata, forward_only=is_compressed(file), notes=notes)

    def write(self, path: Path, arrays: Mapping[str, Array], metadata: Metadata) -> None:
        (array,) = arrays.values()
        header = _header_of(array, metadata)
        with path.open("wb") as raw, ExitStack() as stack:
            target: Any = raw
            if path.name.lower().endswith(".gz"):
                target = stack.enter_context(gzip.GzipFile("", "wb", 3, raw, mtime=0))
            header.write_to(target)
            target.seek(header.get_data_offset())
            for _, block in array.blocks():
                target.write(block.astype(header.get_data_dtype()).tobytes())


def _header_bytes(file: SourceFile) -> int:
    """Return the length of the header (0: it is none of a NIfTI file with voxels)."""
    with stream_of(file, gzip=is_compressed(file)) as stream, reading(file):
        head = stream.read(_LONG)
    for length, (position, magic) in _MAGIC.items():
        stated_length = head[:4]
        is_one = length in (int.from_bytes(stated_length, "little"), int.from_bytes(stated_length, "big"))
        if is_one and head.startswith(magic, position):
            return length
    return 0


def _start_by_size(file: SourceFile, header: Any, nbytes: int) -> int:
    """Return where voxels begin that the header places inside itself, by the bytes behind it.

    They begin behind the header, or behind the four bytes that follow it and say that there is no extension.
    """
    size = file.size
    if is_compressed(file):  # gzip ends with the size of what it holds, modulo 2**32
        size = int.from_bytes(file.bytes()[max(0, size - 4) : size].tobytes(), "little")
    start = size - nbytes % (1 << 32) if is_compressed(file) else size - nbytes
    stated = header.get_data_offset()
    first = header.sizeof_hdr
    if start not in (first, first + 4) or stated not in (0, start):
        raise file.problem(
            f"states that its voxels begin at byte {stated}, which is inside its header",
            "write it again with nibabel",
        )
    return start


def _mend(header: Any) -> list[str]:
    """Take numbers of a header that should not occur as nifti1.h and nibabel do, and say so."""
    taken = []
    qfac, *zooms = header["pixdim"][:4].tolist()
    if qfac not in (1, -1):
        header["pixdim"][0] = 1
        taken.append(f"pixdim[0] is {qfac:g}, and 1 was used instead")
    if any(zoom < 0 for zoom in zooms):
        header["pixdim"][1:4] = np.abs(zooms)
        taken.append(f"pixdim[1:4] is {zooms}, and was used without signs")
    imaginary = np.array([header[f"quatern_{letter}"] for letter in "bcd"], float)
    length = float(np.linalg.norm(imaginary))
    # nifti1_io.c scales it to the length 1, nibabel raises
    if np.isfinite(length) and length**2 - 1 >= abs(header.quaternion_threshold):
        for letter, part in zip("bcd", imaginary / length, strict=True):
            header[f"quatern_{letter}"] = part
        if header["sform_code"] <= 0 < header["qform_code"]:  # else the place is not from qform
            taken.append("the quaternion of qform is longer than 1, and was scaled to 1")
    return taken


def _check_numbers(file: SourceFile, header: Any) -> None:
    """Refuse numbers of a header that nothing follows from."""
    wrong = []
    if not np.isfinite(header["vox_offset"]):
        wrong.append(f"the vox_offset {header['vox_offset']}")
    slope, intercept = float(header["scl_slope"]), float(header["scl_inter"])
    if slope and np.isfinite(slope) and not np.isfinite(intercept):
        wrong.append(f"the scl_slope {slope:g} and the scl_inter {intercept}")
    if wrong:
        raise file.problem(f"states {' and '.join(wrong)}", "correct its header with nibabel", "header")


def _dtype(file: SourceFile, header: Any) -> Dtype:
    try:
        dtype: Dtype = header.get_data_dtype()
    except KeyError:  # nibabel's table of datatypes lacks it
        dtype = np.dtype("V0")
    if not dtype.itemsize:
        raise file.problem(
            f"has voxels of the datatype {header['datatype']}, which is not supported",
            "save it as numbers: array.astype(np.int16)",
            "dtype",
        )
    return dtype


def _scaling(header: Any) -> Scaling | None:
    slope, intercept = header.get_slope_inter()
    if slope is None or (slope == 1 and intercept == 0):
        return None
    dtype = header.get_data_dtype()
    if dtype.kind not in "iu":
        return Scaling(slope, intercept, np.dtype(np.float64))
    limits = np.iinfo(dtype)
    return Scaling.of(slope, intercept, int(limits.min), int(limits.max))


def _metadata(header: Any) -> JsonObject:
    """Return where the voxels lie, and what is kept of the header: no texts, which may name the patient."""
    length = _MILLIMETRES.get(int(header["xyzt_units"]) & 7, 1.0)
    scale = np.diag([length, length, length, 1.0])
    slope, intercept = header.get_slope_inter()
    kept: JsonObject = {"format": "nifti", "dtype": header.get_data_dtype().str}
    kept |= {"slope": slope, "intercept": intercept}
    for form, affine in (("sform", header.get_sform), ("qform", header.get_qform)):
        code = int(header[f"{form}_code"])
        # An affine without extent, as of a pixdim of 0, places nothing
        stated_form = scale @ affine() if code else np.zeros((4, 4))
        is_place = bool(np.isfinite(stated_form).all() and np.linalg.det(stated_form[:3, :3]))
        kept[f"{form}_code"] = code if is_place else 0
        kept[form] = stated_form.tolist() if is_place else None
    placed = kept["sform"] or kept["qform"]
    if placed is None:  # what libraries assume then is no statement of the file
        zooms = [float(zoom) * length for zoom in header.get_zooms()[:3]]
        spacing = {"spacing": zooms[::-1]} if len(zooms) == 3 else {}
        return {**spacing, "header": kept}
    lps = RAS_TO_LPS @ np.array(placed)[:3]
    return {**stated(lps[:, 2::-1], lps[:, 3]), "header": kept}


def _contradicts(kept: Metadata) -> bool:
    """Return whether both ways to place the voxels are there and differ by more than rounding."""
    if kept["sform"] is None or kept["qform"] is None:
        return False
    return not np.allclose(kept["sform"], kept["qform"], rtol=1e-3, atol=1e-2)


def _header_of(array: Array, metadata: Metadata) -> Any:
    import nibabel

    kept: Metadata = metadata.get("header") or {}
    kind: Any = nibabel.Nifti2Header if max(array.shape) > _MOST else nibabel.Nifti1Header
    header = kind(endianness=">" if array.dtype.byteorder == ">" else "<")
    header.set_data_dtype(array.dtype)
    header.set_data_shape(array.shape[::-1])
    header.set_data_offset(header.single_vox_offset)
    header.set_xyzt_units("mm")
    header["pixdim"][1:4] = (metadata.get("spacing") or [1.0] * 3)[::-1]
    if "direction" in metadata:
        ras = np.eye(4)
        ras[:3, :3] = RAS_TO_LPS @ steps_of(metadata)[:, ::-1]
        ras[:3, 3] = RAS_TO_LPS @ origin_of(metadata)
        header.set_sform(ras, 1)
        # Without nibabel's table, which has no code that a file may have beside the five
        header["sform_code"] = kept.get("sform_code", 1)
    if kept.get("qform") is not None:
        header.set_qform(np.array(kept["qform"]), 1)
        header["qform_code"] = kept["qform_code"]
    return header
