"""The page of an inspection: alone, escaped, bounded, with the right samples; and where it is written."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import time
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

import unistore
from tests.support.programs import call
from tests.support.store_files import flip, full_disk
from unistore.cli.output import write_report
from unistore.converters.preview import Measure
from unistore.errors import InputError
from unistore.html import MARK
from unistore.report.values import describe_measure

HOSTILE = "</td><script>alert(1)</script><img src=x onerror=y>&\"'"
DATA = Path(__file__).parents[2] / "data"
VOID = {"meta", "img", "br", "rect"}


class Page(HTMLParser):
    """Elements, their attributes, text; whether every element is closed where it belongs."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.open):
            self.text += data

    def pictures(self) -> list[Any]:
        sources = [found["src"] or "" for tag, found in self.elements if tag == "img"]
        encoded = [source.removeprefix("data:image/webp;base64,") for source in sources]
        return [
            cv2.imdecode(np.frombuffer(base64.b64decode(one), np.uint8), cv2.IMREAD_COLOR) for one in encoded
        ]


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cloud") / "a.zarr"
    unistore.convert([DATA / "pointcloud" / "thin_a.h5"], path, "point_cloud", voxel_size=(20.0,))
    return path


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples are chosen, and not drawn."""
    monkeypatch.setattr("unistore.report.page.still_picture", lambda *_: b"picture")


def captions(text: str) -> list[str]:
    return [
        html.unescape(caption) for caption in re.findall(r"<figcaption>(.*?)</figcaption></figure>", text)
    ]


def views(text: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """What the script is given of each sample: JSON and arrays."""
    data = json.loads(re.findall(r'<script type="application/json" id="samples">(.*?)</script>', text)[0])
    return [unpacked(zlib.decompress(base64.b64decode(sample["data"]))) for sample in data["samples"]]


def unpacked(packed: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    length = int.from_bytes(packed[:4], "little")
    head = json.loads(packed[4 : 4 + length])
    arrays = {}
    for name, about in head["arrays"].items():
        values = np.frombuffer(
            packed, about["dtype"], int(np.prod(about["shape"])), 4 + length + about["place"]
        )
        arrays[name] = values.reshape(about["shape"])
    return head, arrays


def test_a_page_needs_nothing_beside_it(cloud: Path) -> None:
    text = unistore.inspect(cloud).to_html()
    page = Page(text)
    plain = re.sub(r"<script.*?</script>|base64,[^\"]*", "", text, flags=re.DOTALL).replace(str(cloud), "")
    assert not re.search(r"https?:|//|@import|url\(", plain)
    assert not {tag for tag, _ in page.elements} & {"link", "iframe", "object", "form"}
    assert not any("style" in attributes or "onload" in attributes for _, attributes in page.elements)
    policy = next(
        attributes["content"]
        for tag, attributes in page.elements
        if "http-equiv" in attributes and tag == "meta"
    )
    for tag in ("script", "style"):
        inner = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        assert len(inner) == 1
        digest = base64.b64encode(hashlib.sha256(inner[0].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in str(policy)
    assert str(policy).startswith("default-src 'none'")
    assert "unsafe" not in str(policy)
    assert "eval(" not in text
    pictures = page.pictures()
    assert len(pictures) == len(captions(text)) >= 4
    assert all(picture.std() > 8 for picture in pictures)
    for said in (
        "points/classification",
        "points per segment",
        "unistore.Dataset(",
        "thin_a.h5",
        "storage of all",
    ):
        assert said in page.text
    assert len(text) < 1_000_000


def test_a_sample_and_a_distribution_of_each_split(make_store: Any, undrawn: None) -> None:
    splits = {"train": range(6), "val": range(6, 9)}
    path = make_store("rows", {"rows/x": np.arange(9.0)}, count=9, splits=splits)
    assert {"row 3 of train", "row 7 of val"} <= set(captions(unistore.inspect(path).to_html()))
    codes = np.repeat([0, 1], [6, 3]).astype(np.uint8)
    measure = Measure(name="length", values=np.arange(9))
    described = describe_measure(measure, codes, ["train", "val"])
    assert sum(described["by_split"]["val"]) == 3
    assert described["by_split"]["val"][-1] == 1, "bins go from the smallest to the largest of all"


def test_hostile_names_are_text(tmp_path: Path, make_store: Any, undrawn: None) -> None:
    path = make_store(
        "rows",
        {f"rows/{HOSTILE.replace('/', '')}": np.arange(20), "sources/path": [f"{HOSTILE}\x1b[2J\u202e"]},
        count=20,
        splits={HOSTILE: range(20)},
    )
    text = unistore.inspect(path).to_html()
    page = Page(text)
    assert len(re.findall("<script", text)) == 2, "data and script"
    assert not any("onerror" in attributes for _, attributes in page.elements)
    assert HOSTILE in page.text
    assert "<th>options</th>" not in text, "facts without a value are not shown"
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_a_page_of_samples_that_do_not_exist_is_an_error(cloud: Path, tmp_path: Path) -> None:
    found = unistore.inspect(cloud)
    with pytest.raises(InputError, match=r"is 4,000, but .* has the samples 0 to"):
        found.to_html([4000])
    with pytest.raises(InputError, match="at most 24"):
        found.to_html(range(25))
    np.save(tmp_path / "a.npy", np.arange(5))
    with pytest.raises(InputError, match="needs a store"):
        unistore.inspect(tmp_path / "a.npy").to_html([1])


def test_a_page_of_something_other_than_a_store_has_no_pictures(tmp_path: Path) -> None:
    (tmp_path / "a.h5").write_bytes(b"not HDF5")
    page = Page(unistore.inspect(tmp_path).to_html())
    assert "a.h5" in page.text
    assert not page.pictures()


def test_an_empty_and_an_unknown_store_have_pages(make_store: Any) -> None:
    empty = make_store("rows", {"rows/x": np.empty((0, 4))}, count=0)
    assert "none" in Page(unistore.inspect(empty).to_html()).text
    foreign = make_store("sonar", {"rows/x": np.ones((9, 4))}, count=9)
    head, _ = views(unistore.inspect(foreign).to_html())[0]
    assert (head["widget"], [column["name"] for column in head["columns"]]) == ("rows", ["rows/x"])


def test_a_page_of_a_million_samples_is_small_and_quick(tmp_path: Path, undrawn: None) -> None:
    np.savez(
        tmp_path / "a.npz",
        data=np.random.default_rng(0).random((1_000_000, 8), np.float32),
        label=np.arange(1_000_000) % 7,
    )
    unistore.convert(tmp_path / "a.npz", tmp_path / "a.zarr", "rows")
    began = time.process_time()
    found = unistore.inspect(tmp_path / "a.zarr")
    text = found.to_html()
    assert time.process_time() - began < 5
    assert len(text) < 100_000
    values = {array["path"]: array["values"] for array in found.details["arrays"]}
    assert values["rows/data"]["read"] * 4 <= 4 << 20
    assert values["rows/data"]["of"] == 8_000_000
    assert "~0.5" in str(found)


def test_values_of_damaged_arrays_are_remarked(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", data=np.random.default_rng(0).random((500, 4)), label=np.arange(500) % 2)
    unistore.convert(tmp_path / "a.npz", tmp_path / "a.zarr", "rows", codec="none")
    shard = max((tmp_path / "a.zarr/rows/data").rglob("c/*/*"), key=lambda file: file.stat().st_size)
    flip(shard, 100, 255)
    found = unistore.inspect(tmp_path / "a.zarr")
    assert any("rows/data" in remark and "unistore verify" in remark for remark in found.details["remarks"])
    assert "label" in str(found)
    text = found.to_html()
    assert "row 0: no picture: " in text
    assert "<figure" not in text
    assert {head["widget"] for head, _ in views(text)} == {"error"}


@pytest.mark.usefixtures("undrawn")
def test_the_page_is_written_whole_and_over_reports_alone(cloud: Path, tmp_path: Path, capsys: Any) -> None:
    page = tmp_path / "report.html"
    assert call("inspect", cloud, "--html", page, "--samples", "3,1") == 0
    assert capsys.readouterr().out == f"{page}: written; open it in a browser\n"
    first = page.read_text()
    assert captions(first)[:2] == ["segment 3", "segment 1"]
    assert call("inspect", cloud, "--html", page) == 0, "a report of ours is replaced"
    assert captions(page.read_text())[0] == "segment 0"
    page.write_text("my thesis")
    assert call("inspect", cloud, "--html", page) == 2
    assert "fix: choose another name, or add --overwrite" in capsys.readouterr().err
    assert page.read_text() == "my thesis"
    assert call("inspect", cloud, "--html", page, "--overwrite") == 0
    assert MARK in page.read_text()
    assert call("inspect", cloud, "--html", tmp_path, "--overwrite") == 2
    assert "is not a plain file" in capsys.readouterr().err
    assert call("inspect", cloud, "--html", "") == 2
    assert "is not a plain file" in capsys.readouterr().err
    assert call("inspect", cloud, "--html", cloud / "report.html") == 2
    assert "is inside a sealed store" in capsys.readouterr().err
    assert call("inspect", cloud, "--html", tmp_path / "nowhere" / "a.html") == 2
    assert "cannot be written (No such file or directory)" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


@pytest.mark.usefixtures("undrawn")
def test_a_page_without_a_name_is_called_as_its_store(
    cloud: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call("inspect", cloud, "--html") == 0
    assert [path.name for path in tmp_path.iterdir()] == ["a.html"]


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "report.html"
    write_report(str(page), f"{MARK} first".encode())

    monkeypatch.setattr(Path, "replace", full_disk)
    with pytest.raises(InputError, match="No space left on device"):
        write_report(str(page), f"{MARK} second".encode())
    assert page.read_text() == f"{MARK} first"
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_inspect_sample_prints_its_keys_and_plots_it(cloud: Path, tmp_path: Path, capsys: Any) -> None:
    assert call("inspect", cloud, "--sample", 2, "--plot", tmp_path / "a.png") == 0
    out = capsys.readouterr().out
    sample = unistore.Dataset(cloud)[2]
    assert re.search(rf"xyz +{len(sample['xyz'])} × 3 +float32 +0 ", out)
    assert re.search(r"from +thin_a.h5", out)
    assert cv2.imread(str(tmp_path / "a.png")).std() > 8
    assert call("inspect", cloud, "--sample", 9999) == 2
    assert "has the samples 0 to" in capsys.readouterr().err


def test_inspect_sample_of_an_episode_shows_its_first_steps(tmp_path: Path, capsys: Any) -> None:
    unistore.convert(DATA / "trajectory/robosuite100_lift_panda_demo.hdf5", tmp_path / "a.zarr")
    assert call("inspect", tmp_path / "a.zarr", "--sample", 0) == 0
    out = capsys.readouterr().out
    assert "unistore.Transitions(), the first 32 of 412" in out
    assert re.search(r"action +32 × 7", out)
