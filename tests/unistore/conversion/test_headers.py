"""What lies in a header: no small file takes a gigabyte, whatever it states, and sound twins convert."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import numpy as np
import pytest

import unistore
from tests.support.lying_headers import ATTACKS as HEADERS
from tests.support.lying_headers import deflated_zeros, metaimage
from tests.support.lying_recordings import RECORDINGS
from tests.support.programs import printed
from unistore.conversion.convert import make_converter
from unistore.conversion.memory import PROCESS, estimate
from unistore.conversion.signatures import convert
from unistore.converters.source_scan import scan_sources
from unistore.errors import AddOptions, InputError
from unistore.system.sizes import parse_bytes

MOST = 1000 << 20  # bytes of any process of a conversion
ATTACKS = HEADERS | RECORDINGS
MEASURED = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print(code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""
"""Exit code and peak in KiB of a command. A child begins with the peak of its parent, so that is small."""
# Small to make, and refused by what each of the formats knows of its bytes, or by what a step may take
QUICK = ("pcd_lzf", "pcd_text", "ply_text", "nifti_gz", "nrrd_lines", "dicom_rle", "parquet_wide")


@pytest.mark.parametrize("name", QUICK)
def test_a_header_that_lies_is_refused_before_memory_is_taken(name: str, tmp_path: Path) -> None:
    family, make = ATTACKS[name]
    (tmp_path / "in").mkdir()
    make(tmp_path / "in")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match=r"states .* bytes|states .* rows|bytes of voxels|header states"):
        convert(tmp_path / "in", tmp_path / "out", family, workers=0)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10


@pytest.mark.nightly
@pytest.mark.parametrize("name", ATTACKS)
def test_no_small_file_takes_a_gigabyte(name: str, tmp_path: Path) -> None:
    family, make = ATTACKS[name]
    (tmp_path / "in").mkdir()
    make(tmp_path / "in")
    words = ["convert", family, str(tmp_path / "in"), str(tmp_path / "out"), "--workers", "0"]
    code, kibibytes = map(int, printed("-c", MEASURED, sys.executable, "-m", "unistore", *words).split())
    assert code in (0, 2)
    assert kibibytes << 10 < MOST


def test_a_sound_file_that_inflates_a_thousandfold_fits_the_limit_of_its_fix(tmp_path: Path) -> None:
    """A plane of 1.2 GB of zeros, in a file of 1.2 MB."""
    metaimage(tmp_path, "20000 7550 1", deflated_zeros(20000 * 7550 * 8))
    with pytest.raises(InputError, match="more than 1032 times as much") as refused:
        convert(tmp_path / "a.mha", tmp_path / "out", "ct", workers=0)
    (problem,) = refused.value.problems
    assert (problem.kind, problem.source) == ("memory", "a.mha")
    (fix,) = (fix for fix in problem.fixes if isinstance(fix, AddOptions))
    assert fix.arguments[0] == "--memory"
    limit = parse_bytes(fix.arguments[1], "--memory")
    converter = make_converter("ct", {})
    found = estimate(converter, scan_sources(converter, [tmp_path / "a.mha"]), 0)
    assert PROCESS + 1_200_000_000 < found.peak(limit, 0).bytes <= limit  # two gigabytes are not taken here


def test_constant_values_that_compress_a_thousandfold_are_converted(tmp_path: Path) -> None:
    """Zeros that deflate to a thousandth convert as they are."""
    zeros = np.zeros((4, 2_000_000), "f4")
    np.savez_compressed(tmp_path / "a.npz", data=zeros)
    convert(tmp_path / "a.npz", tmp_path / "out", "rows", workers=0)
    array = unistore.open_zarr(tmp_path / "out")["rows/data"]
    np.testing.assert_array_equal(array[:], zeros)
