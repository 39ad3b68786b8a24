"""Pages in headless Chromium: every widget is moved and shows what numpy says (``make browser``)."""

from __future__ import annotations

import base64
import html
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

import unistore
from tests.support.cases import DATA, MAKERS, REAL
from unistore.html import COLOURS
from unistore.report.serve import ViewServer
from unistore.store.reader import Store

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed: make browser")

HOSTILE = "</script><script>document.title='taken'</script><img src=x onerror=y>&\"'"
OF_CHROMIUM = (".google.com", ".gvt1.com", ".googleapis.com", ".gstatic.com")
"""Hosts that Chromium itself asks, for its clock and updates."""
DARK = "--blink-settings=preferredColorScheme=0"
"""What makes pages dark."""
DRIVER = """
const sleep = milliseconds => new Promise(done => setTimeout(done, milliseconds));
const frame = document.querySelector("iframe");
let page;
async function shown(number) {
  for (let tries = 0; tries < 400; tries += 1) {
    const stage = page.querySelector("[data-shown]");
    if (stage && (number === undefined || stage.dataset.shown === String(number))) return;
    await sleep(20);
  }
  throw new Error("nothing is shown");
}
function labelled(name) {
  const labels = [...page.querySelectorAll("#viewer label")];
  const label = labels.find(one => one.querySelector("span").textContent === name);
  return label.querySelector("input, select");
}
function move(name, value, event = "input") {
  const input = labelled(name);
  input.value = value;
  input.dispatchEvent(new frame.contentWindow.Event(event));
}
function press(text) {
  [...page.querySelectorAll("#viewer button")].find(one => one.textContent.startsWith(text)).click();
}
function canvases() {
  return [...page.querySelectorAll("#viewer canvas")].map(canvas => {
    const copy = document.createElement("canvas");
    copy.width = canvas.width;
    copy.height = canvas.height;
    const context = copy.getContext("2d", {willReadFrequently: true});
    context.drawImage(canvas, 0, 0);
    const bytes = context.getImageData(0, 0, canvas.width, canvas.height).data;
    let text = "";
    for (const byte of bytes) text += String.fromCharCode(byte);
    return {width: canvas.width, height: canvas.height, data: btoa(text)};
  });
}
const texts = selector => [...page.querySelectorAll(selector)].map(one => one.textContent);
onload = async () => {
  let result;
  try {
    page = frame.contentDocument;
    await shown();
    result = await (async () => { %s })();
  } catch (error) {
    result = {error: String(error)};
  }
  document.querySelector("pre").textContent = JSON.stringify(result);
};
"""
"""Moves a page in a frame, as a person would, and says what is there."""


def chromium(folder: Path, address: str, *options: str) -> str:
    """What a page becomes, which must log nothing and ask no network for anything."""
    assert CHROMIUM is not None
    log = folder / "requests.json"
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    command += ["--disable-background-networking", "--disable-component-update", "--no-first-run"]
    command += [
        f"--log-net-log={log}",
        f"--user-data-dir={folder / 'profile'}",
        "--virtual-time-budget=20000",
    ]
    done = subprocess.run([*command, *options, address], capture_output=True, text=True, check=True)
    assert "CONSOLE" not in done.stderr, re.findall(".*CONSOLE.*", done.stderr)
    hosts = set(re.findall(r'"url":"https?://([^/"]*)', log.read_text()))
    assert not {host for host in hosts if host not in address and not host.endswith(OF_CHROMIUM)}
    return done.stdout


def driven(folder: Path, page: str, script: str, width: int = 1280, *options: str) -> Any:
    """What a script returns that moves a page."""
    frame = f'<iframe width={width} height=2000 srcdoc="{html.escape(page)}"></iframe><pre></pre>'
    file = folder / "frame.html"
    file.write_text(f"<meta charset=utf-8>{frame}<script>{DRIVER % script}</script>", encoding="utf-8")
    dumped = chromium(folder, file.as_uri(), "--dump-dom", *options)
    result = json.loads(html.unescape(re.findall(r"<pre>(.*?)</pre></?", dumped, re.DOTALL)[-1]))
    assert not (isinstance(result, dict) and "error" in result), result
    return result


def pixels(canvas: dict[str, Any]) -> NDArray[np.uint8]:
    """Red, green and blue of a canvas, (height, width, 3)."""
    data = np.frombuffer(base64.b64decode(canvas["data"]), np.uint8)
    return data.reshape(canvas["height"], canvas["width"], 4)[:, :, :3]


def gray(values: Any, low: float, high: float) -> NDArray[np.float64]:
    return np.clip((np.asarray(values, np.float64) - low) * 255 / (high - low), 0, 255)


def assert_gray(canvas: dict[str, Any], values: Any, low: float, high: float) -> None:
    seen = pixels(canvas)
    assert (seen == seen[:, :, :1]).all()
    np.testing.assert_allclose(seen[:, :, 0], gray(values, low, high), atol=0.51)


def page_of(store: Path) -> str:
    return unistore.inspect(store).to_html()


def test_planes_of_a_volume_follow_sliders_presets_and_masks(tmp_path: Path) -> None:
    volume = np.random.default_rng(0).integers(-1000, 1000, (9, 20, 30)).astype(np.int16)
    np.save(tmp_path / "a.npy", volume)
    unistore.convert(tmp_path / "a.npy", tmp_path / "a.zarr", "ct", window=("low:1500:0",))
    first, moved, windowed, masked = driven(
        tmp_path,
        page_of(tmp_path / "a.zarr"),
        """
        const pictures = [canvases()];
        move("axis 0", 2); move("axis 2", 29);
        pictures.push(canvases());
        move("level", 100); move("width", 400);
        pictures.push(canvases());
        page.querySelector("#viewer input[type=checkbox]").click();
        pictures.push(canvases());
        return pictures;
        """,
    )
    low, high = np.percentile(volume, (1, 99))
    assert_gray(first[0], volume[4], low, high)
    assert_gray(first[1], volume[:, 10], low, high)
    assert_gray(moved[0], volume[2], low, high)
    assert_gray(moved[2], volume[:, :, 29], low, high)
    assert_gray(windowed[1], volume[:, 10], -100, 300)
    tinted = (pixels(masked[0]) != pixels(windowed[0])).any(axis=2)
    inside = (volume[2] >= -750) & (volume[2] <= 750)
    np.testing.assert_array_equal(tinted, inside)
    plain = pixels(windowed[0])[inside] * 0.6 + np.array(COLOURS[1]) * 0.4
    np.testing.assert_allclose(pixels(masked[0])[inside], plain, atol=1.01)


def test_points_turn_zoom_and_take_colours(tmp_path: Path) -> None:
    store = MAKERS["cloud_real"](tmp_path).convert(tmp_path / "a.zarr")
    above, keyed, height = driven(
        tmp_path,
        page_of(store),
        """
        press("from above");
        const above = canvases()[0];
        const canvas = page.querySelector(".cloud");
        for (const key of ["ArrowRight", "+"]) {
          canvas.dispatchEvent(new frame.contentWindow.KeyboardEvent("keydown", {key: key}));
        }
        const keyed = canvases()[0];
        press("from above");
        const list = labelled("colour by");
        move("colour by", list.options.length - 1, "change");
        return [above, keyed, canvases()[0]];
        """,
    )
    xyz = unistore.Dataset(store)[0]["xyz"].numpy()
    drawn = (pixels(above) != 255).any(axis=2)
    rows, columns = (np.flatnonzero(drawn.any(axis=axis)) for axis in (1, 0))
    spans = np.ptp(xyz, axis=0)
    size = 6
    shown = (np.ptp(columns) - size) / (np.ptp(rows) - size)
    assert shown == pytest.approx(spans[0] / spans[1], rel=0.05)
    assert (pixels(keyed) != pixels(above)).any()
    assert {tuple(colour) for colour in pixels(above)[drawn].tolist()} <= set(COLOURS)
    assert len({tuple(colour) for colour in pixels(height).reshape(-1, 3).tolist()}) > 20


def test_predictions_that_are_attached_lie_beside_labels(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    volume = rng.integers(-1000, 1000, (9, 20, 30)).astype(np.int16)
    predicted = rng.integers(0, 4, volume.shape).astype(np.uint8)
    np.save(tmp_path / "a.npy", volume)
    unistore.convert(tmp_path / "a.npy", tmp_path / "a.zarr", "ct")
    unistore.attach(tmp_path / "a.zarr", "segmented", [predicted], table="volumes")
    with_it, without, legend = driven(
        tmp_path,
        page_of(tmp_path / "a.zarr"),
        """
        const tinted = canvases();
        page.querySelector("#viewer input[type=checkbox]").click();
        return [tinted, canvases(), texts(".legend span")];
        """,
    )
    assert legend == ["1", "2", "3"]
    shown = predicted[4]
    plain = pixels(without[0]).astype(np.float64)
    for number in range(4):
        colour = np.array(COLOURS[number % len(COLOURS)])
        expected = plain * 0.6 + colour * 0.4 if number else plain
        inside = shown == number
        np.testing.assert_allclose(pixels(with_it[0])[inside], expected[inside], atol=1.01)

    cloud = MAKERS["cloud_real"](tmp_path).convert(tmp_path / "b.zarr")
    points = len(unistore.Store(cloud).array("points/xyz"))
    unistore.attach(cloud, "predicted", np.arange(points) % 3)
    names, legend = driven(
        tmp_path,
        page_of(cloud),
        """
        const names = [...labelled("colour by").options].map(one => one.textContent);
        move("colour by", names.indexOf("predicted"), "change");
        return [names, texts(".legend span")];
        """,
    )
    assert names.index("predicted") < names.index("intensity")
    assert legend == ["0", "1", "2"]


def test_spikes_of_a_window_of_time_are_summed(tmp_path: Path) -> None:
    store = MAKERS["spike_real"](tmp_path).convert(tmp_path / "a.zarr")
    first, moved = driven(
        tmp_path,
        page_of(store),
        'const one = canvases()[0]; move("window", 3); move("from step", 5); return [one, canvases()[0]];',
    )
    spikes = unistore.Dataset(store, unistore.Clips(length=1, crop=None), fields=["spike"])[0]["spike"]
    steps = spikes.numpy()[0].astype(int)
    length = max(1, round(len(steps) / 5))
    for canvas, sums in ((first, steps[:length].sum(axis=0)), (moved, steps[5:8].sum(axis=0))):
        assert_gray(canvas, sums, 0, sums.max())


def test_events_of_a_window_of_time_are_red_and_blue(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    store = MAKERS["events_of_two_cameras"](tmp_path / "in").convert(tmp_path / "a.zarr")
    (canvas, *_), captions = driven(
        tmp_path,
        page_of(store),
        'move("window", 1e12); return [canvases(), texts("#viewer figcaption")];',
    )
    group = unistore.open_zarr(store)
    stop = int(np.asarray(group["recordings/offsets"])[1])
    t, x, y, p = (np.asarray(group[f"events/{name}"])[:stop].astype(np.int64) for name in "txyp")
    sums = np.zeros((canvas["height"], canvas["width"]), np.int64)
    np.add.at(sums, (y, x), 2 * p - 1)
    red = pixels(canvas)[:, :, 0].astype(int) - pixels(canvas)[:, :, 2]
    ground = red[sums == 0][0] if (sums == 0).any() else 0
    np.testing.assert_array_equal(np.sign(red - ground), np.sign(sums))
    assert captions[0].startswith(f"{len(t):,} events")


def test_cameras_and_curves_have_one_cursor(tmp_path: Path) -> None:
    store = tmp_path / "a.zarr"
    unistore.convert(DATA / "lerobot" / "v3", store, "trajectory")
    first, moved, captions = driven(
        tmp_path,
        page_of(store),
        """
        // Frames are decoded beside the script, for which the clock of the test does not wait
        async function drawn(number) {
          for (let tries = 0; tries < 500; tries += 1) {
            if (page.querySelector("#viewer canvas").dataset.frame === String(number)) return;
            let sum = 0;
            for (let turn = 0; turn < 4e6; turn += 1) sum += turn % 7;
            await sleep(sum % 1 + 1);
          }
          throw new Error("no frame is drawn");
        }
        await drawn(0);
        const first = canvases();
        move("step", 4);
        await drawn(4);
        return [first, canvases(), texts("#viewer figcaption")];
        """,
    )
    dataset = unistore.Dataset(store, unistore.Episodes())
    episode = dataset[0]
    camera = next(
        key for key, value in episode.items() if getattr(value, "ndim", 0) == 4 and value.shape[1] == 3
    )
    for canvases, step in ((first, 0), (moved, 4)):
        frame = episode[camera][step].numpy().transpose(1, 2, 0)
        assert np.abs(pixels(canvases[0]).astype(int) - frame).mean() < 6, "JPEG loses a little"
    assert "step 4" in captions[0]
    action = next(caption for caption in captions if caption.startswith("action "))
    shown = [float(number) for number in action.removeprefix("action ").split(", ")]
    np.testing.assert_allclose(shown, episode["action"][4].numpy()[: len(shown)], rtol=1e-3)


def test_rows_are_images_lines_and_numbers(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    image = rng.integers(0, 255, (5, 24, 32, 3), np.uint8)
    depth = rng.random((5, 20, 10))
    np.savez(
        tmp_path / "a.npz", image=image, depth=depth, curve=rng.random((5, 50)), label=np.arange(5) + 76_500
    )
    unistore.convert(tmp_path / "a.npz", tmp_path / "a.zarr", "rows")
    shown, cells = driven(
        tmp_path,
        page_of(tmp_path / "a.zarr"),
        'press("row 3"); await shown(3); return [canvases(), texts("#viewer td")];',
    )
    by_size = {(canvas["height"], canvas["width"]): canvas for canvas in shown}
    np.testing.assert_array_equal(pixels(by_size[24, 32]), image[3])
    low, high = np.percentile(depth[3].astype(np.float32), (1, 99))
    assert_gray(by_size[20, 10], depth[3].astype(np.float32), low, high)
    assert len(shown) == 3
    assert "76,503" in cells


def test_hostile_names_and_labels_stay_text(tmp_path: Path, make_store: Any) -> None:
    path = make_store(
        "rows",
        {
            f"rows/{HOSTILE.replace('/', '')}": np.arange(80.0).reshape(20, 4),
            "sources/path": ["y" * 1_000_000],
        },
        count=20,
        splits={HOSTILE: range(20)},
    )
    text = page_of(path)
    title, scripts, images, button = driven(
        tmp_path,
        text,
        "return [page.title, page.scripts.length, page.images.length, texts('#viewer button')];",
    )
    assert title != "taken"
    assert scripts == 2
    assert images == 0, "still pictures stand in noscript"
    assert HOSTILE in button[0]


@pytest.mark.parametrize("options", [(), (DARK,)], ids=["light", "dark"])
@pytest.mark.parametrize("name", [*REAL, "events_of_two_cameras"])
def test_a_page_fits_the_window_and_is_not_blank(tmp_path: Path, name: str, options: tuple[str, ...]) -> None:
    (tmp_path / "in").mkdir()
    store = MAKERS[name](tmp_path / "in").convert(tmp_path / "a.zarr")
    text = page_of(store)
    assert len(text) < 5_000_000
    for width in (1280, 400):
        wide, count = driven(
            tmp_path, text, "return [page.documentElement.scrollWidth, canvases().length];", width, *options
        )
        assert wide <= width, "it is scrolled sideways"
        assert count
    (tmp_path / "a.html").write_text(text, encoding="utf-8")
    screenshot = f"--screenshot={tmp_path / 'a.png'}"
    chromium(tmp_path, (tmp_path / "a.html").as_uri(), "--window-size=1280,2000", screenshot, *options)
    seen = cv2.imread(str(tmp_path / "a.png"))
    assert seen is not None
    assert seen.std() > 15
    assert (seen[0, 0] < 40).all() if options else (seen[0, 0] > 240).all()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ViewServer]:
    store = MAKERS["cloud_real"](tmp_path).convert(tmp_path / "a.zarr")
    with ViewServer(store) as started:
        thread = threading.Thread(target=started.serve_forever)
        thread.start()
        yield started
        started.shutdown()
        thread.join()


def test_the_served_page_asks_for_samples(server: ViewServer, tmp_path: Path) -> None:
    shown = chromium(tmp_path, server.address, "--dump-dom")
    assert 'data-shown="0"' in shown
    assert "all points" in shown
    assert f"of {Store(server.opened.path).sample_count}" in shown
