"""Recognise files of trajectories by names, and find where their episodes are."""

# ``lerobot``, ``rlds``: ``data/<episode>/…``, as the formats of these names open a dataset. ``replay_zarr``:
# the replay buffer of diffusion policy, ``data/<episode>/…`` as its format opens it. ``minari``: groups
# ``episode_0`` and so on, as its format opens a dataset; ``maniskill``: ``traj_0`` and so on. ``groups``:
# such groups at the root without an observation more. ``robomimic`` (LIBERO, MimicGen, robosuite, Isaac Lab):
# ``data/<episode>/…``; ``mask/<name>`` list episodes. ``act`` (ACT, ALOHA): one episode a file, ``action``
# beside ``observations/{qpos, images/<camera>}``; ``dotted`` (PH2D): the same with names as LeRobot's,
# ``observation.image.left``; ``robotwin``, ``droid``: the same with a group of actions, of which ``robotwin``
# has the vector of all. ``d4rl``, ``flat``: many consecutive episodes in the same arrays. Flags in
# ``terminals`` or ``timeouts`` end one, and so does the end of the file. ``observations`` is an array, or a
# group, or there are keys beside ``actions`` and ``rewards``. ``streams``: one episode a file, a group for
# each stream: ``action/{timestamps, value}``. ``bag``: one episode a bag, a group for each topic.

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from unistore.converters.formats.last_observations import LastObservations
from unistore.converters.formats.maniskill import MANISKILL
from unistore.converters.formats.minari import MINARI
from unistore.errors import AddOptions, Fix, InputError, Location, location_of
from unistore.plugin import Array, FileSummary, Metadata, OpenFile

METADATA = "metadata.yaml"  # describes the files of a bag that lie beside it
STAMP, LOG_TIME = "header_stamp", "log_time"  # names of the times of the messages of a topic, in bags
_ACTIONS = ("action", "actions")
_RESULTS = (
    "rewards",
    "reward",
    "terminals",
    "terminal",
    "dones",
    "timeouts",
    "terminated",
    "terminateds",
    "truncateds",
)
TIMES = ("timestamps", "timestamp", "time", "t")  # names of the timestamps of all arrays of a group
_EPISODE = re.compile(r"(demo|episode|ep|traj|trajectory|rollout)[_-]?[0-9]+", re.IGNORECASE)
MASKS = "mask/"  # begins the paths of lists of episodes
_LISTED = 8
_FEW = 2
_LIKE_ACTIONS = re.compile(r"act|cmd|command|control|ctrl|target", re.IGNORECASE)


class EpisodeLayout(NamedTuple):
    """A layout. `LAYOUTS` has all."""

    name: str  # `source_layout` in a store
    evidence: str  # what its files are recognised by, for messages, after "contains"
    # Whether a file is of this layout, by its names; None: files of the format of its name are.
    fits: Callable[[FileSummary], bool] | None = None
    # Group whose groups are the episodes; empty: the root. None: the file is one group of arrays.
    container: str | None = None
    # Whether the arrays hold several consecutive episodes, each ended by a flag. Then attributes and small
    # arrays belong to the file, not to an episode.
    joined: bool = False
    # Names in files that have the observation after the last step as a row more, which their format opens as
    # next observations. None: files have none.
    last: LastObservations | None = None
    is_bare: bool = False  # whether arrays of an episode are observations, but actions and results
    # Whether the format tells the clock of every array: none is a column of the steps by its length.
    timed: bool = False

    def group_of(self, episode: str) -> str:
        """Return the path of an episode's group."""
        return "" if self.container is None else f"{self.container}/{episode}".lstrip("/")

    def dataset_in_file(self, dataset: str) -> str:
        """Return the path in an episode of rows that its format may open under another name."""
        return dataset if self.last is None else self.last.dataset_in_file(dataset)

    def file_metadata(self, opened: OpenFile) -> Metadata:
        """Return attributes of the file that are not those of an episode."""
        if self.container is not None:
            return {**opened.group_metadata(), **opened.group_metadata(self.container)}
        return opened.group_metadata() if self.joined else {}


class EpisodeRecording(NamedTuple):
    """Arrays with common rows: those of one episode, or of all joined episodes of a file."""

    opened: OpenFile
    name: str  # of the episode; several joined ones are numbered: ``"hopper:2"``
    group: str  # path in the file; problems below it belong to this episode, which can be excluded alone
    arrays: Mapping[str, Array]  # by path inside the group
    is_bare: bool = False  # whether arrays outside a group of observations are observations, too
    times: Mapping[str, str] = {}  # path of the timestamps of each array, where the format tells them

    def location(self, path: str = "") -> Location:
        """Return what messages call an array, or the group."""
        return location_of(self.opened.name, f"{self.group}/{path}")

    def metadata(self, path: str = "") -> Metadata:
        """Return what the file says of an array or group."""
        return self.opened.group_metadata(f"{self.group}/{path}".strip("/"))


def layout_of(head: FileSummary) -> EpisodeLayout | None:
    """Return the layout of a file, or None if it is not a trajectory file."""
    for layout in (*_BY_FORMAT, *LAYOUTS):
        if head.format == layout.name if layout.fits is None else layout.fits(head):
            return layout
    return None


def needed_layout(head: FileSummary, *, is_mapped: bool) -> EpisodeLayout:
    """Return the layout of a file, which may have any names where the user maps its arrays."""
    layout = layout_of(head)
    if layout is None and is_mapped:
        return FLAT
    if layout is not None:
        return layout
    names = sorted(head.members())[:_LISTED]
    expected = "; or ".join(other.evidence for other in LAYOUTS)
    message = f"is not a trajectory file: it contains {', '.join(names) or 'nothing'}; expected {expected}"
    raise InputError.at(head.file.name, message, _possible_actions(head), "layout")


def _possible_actions(head: FileSummary) -> tuple[Fix, ...]:
    """Return options that name arrays of numbers, those first that are called like actions."""
    paths = [path for path, (shape, dtype) in head.arrays.items() if len(shape) == 2 and dtype.kind in "iuf"]
    rows = Counter(head.arrays[path][0][0] for path in paths)
    steps = max(rows, key=lambda count: rows[count], default=0)
    possible = [path for path in paths if head.arrays[path][0][0] == steps]
    possible.sort(key=lambda path: _LIKE_ACTIONS.search(path) is None)
    fixes = [AddOptions(("--map", f"action={path}"), "if it holds the actions") for path in possible[:_FEW]]
    return (*fixes, "name the dataset of the actions with --map")


def _is_robomimic(head: FileSummary) -> bool:
    """Return whether ``data`` has only groups, and the first has the name or the arrays of an episode."""
    data = head.members("data")
    if set(data.values()) != {"group"}:
        return False
    first = next(iter(data))
    if _EPISODE.fullmatch(first):
        return True
    return not head.members(f"data/{first}").keys().isdisjoint((*_ACTIONS, "obs", "states"))


def _is_groups(head: FileSummary) -> bool:
    """Return whether the root has only groups that have the names of episodes, and the first has actions."""
    root = head.members()
    if set(root.values()) != {"group"} or not all(map(_EPISODE.fullmatch, root)):
        return False
    return _has_actions(head.members(next(iter(root))))


def _is_act(head: FileSummary) -> bool:
    # Files with rewards or terminals are of other layouts
    root = head.members()
    if root.get("action") != "array" or not root.keys().isdisjoint(_RESULTS):
        return False
    return not head.members("observations").keys().isdisjoint(("qpos", "images"))


def _is_dotted(head: FileSummary) -> bool:
    root = head.members()
    has_observations = any(name.startswith("observation.") for name in root)
    return _has_actions(root) and has_observations and root.keys().isdisjoint(_RESULTS)


def _is_robotwin(head: FileSummary) -> bool:
    return head.members("joint_action").get("vector") == "array" and bool(head.members("observation"))


def _is_droid(head: FileSummary) -> bool:
    has_actions = "array" in head.members("action").values()
    return has_actions and head.members("observation").get("robot_state") == "group"


def _has_actions(root: Mapping[str, str]) -> bool:
    return any(root.get(name) == "array" for name in _ACTIONS)


def _is_d4rl(head: FileSummary) -> bool:
    root = head.members()
    return _has_actions(root) and (root.get("observations") or root.get("observation")) == "array"


def _is_flat(head: FileSummary) -> bool:
    root = head.members()
    if root.get("observations") != "group":
        return _has_actions(root) and not root.keys().isdisjoint(_RESULTS)
    cameras = ("images", "rgb_images")
    return _has_actions(root) or not head.members("observations").keys().isdisjoint(cameras)


def _is_streams(head: FileSummary) -> bool:
    root = head.members()
    actions = [name for name in _ACTIONS if root.get(name) == "group"]
    return any(not head.members(name).keys().isdisjoint(TIMES) for name in actions)


LEROBOT = EpisodeLayout("lerobot", "meta/info.json of LeRobot", container="data")
BAG = EpisodeLayout("bag", "topics of a bag", timed=True)
_BY_FORMAT = (
    LEROBOT,
    BAG,
    EpisodeLayout("rlds", "episodes in TFRecord", container="data"),
    EpisodeLayout("minari", "main_data.hdf5 next to metadata.json of Minari", container="", last=MINARI),
    EpisodeLayout("maniskill", "groups traj_0, traj_1, … of ManiSkill", container="", last=MANISKILL),
    EpisodeLayout("replay_zarr", "meta/episode_ends in Zarr", container="data", is_bare=True),
)
FLAT = EpisodeLayout(
    "flat", "actions or cameras next to observations, rewards or terminals", _is_flat, joined=True
)
# Those of files whose names tell the layout, in the order in which they are tried.
LAYOUTS = (
    EpisodeLayout("robomimic", "episodes as groups of data/", _is_robomimic, container="data"),
    EpisodeLayout("groups", "episodes as groups of the root", _is_groups, container=""),
    EpisodeLayout("act", "action next to observations/qpos or observations/images", _is_act),
    EpisodeLayout("d4rl", "actions next to a dataset of observations", _is_d4rl, joined=True),
    FLAT,
    EpisodeLayout("dotted", "action next to observation.…", _is_dotted),
    EpisodeLayout("robotwin", "joint_action/vector next to observation/", _is_robotwin),
    EpisodeLayout("droid", "action/ next to observation/robot_state/", _is_droid),
    EpisodeLayout("streams", "a group of actions with timestamps", _is_streams),
)


def layout_named(name: str) -> EpisodeLayout:
    """Return the layout by its name. Any other name, as a hostile store may have, is a KeyError."""
    return {layout.name: layout for layout in (*_BY_FORMAT, *LAYOUTS)}[name]


def recordings_of(layout: EpisodeLayout, opened: OpenFile, stamps: str) -> list[EpisodeRecording]:
    """Groups of arrays of an open file, in the order of their episodes. `stamps` as the option."""
    assert opened.file is not None
    path, arrays = opened.file.path, opened.all_arrays
    if layout == BAG:
        name = path.parent.name if path.name == METADATA else path.stem
        return [
            EpisodeRecording(opened, name, "", arrays, is_bare=True, times=_times_of_topics(arrays, stamps))
        ]
    if layout.container is None:
        has_group = any(name.startswith(("observation", "obs/")) for name in arrays)
        is_bare = (layout.joined or layout.name == "streams") and not has_group
        return [EpisodeRecording(opened, path.stem, "", arrays, is_bare)]
    groups = [group for group in opened.groups if group.rpartition("/")[0] == layout.container]
    inside: dict[str, dict[str, Array]] = {group: {} for group in groups}
    depth = layout.group_of("").count("/") + 1
    for name, array in arrays.items():
        parts = name.split("/")
        group = "/".join(parts[:depth])
        if group in inside:
            inside[group]["/".join(parts[depth:])] = array
    return [
        EpisodeRecording(opened, group.rpartition("/")[2], group, own, layout.is_bare)
        for group, own in inside.items()
    ]


def _times_of_topics(arrays: Collection[str], stamps: str) -> dict[str, str]:
    """Return the path of the timestamps of each array of a bag: stamps of headers, or times of logging."""
    times = {}
    for path in arrays:
        topic = path.rpartition("/")[0]
        stamp = f"{topic}/{STAMP}"
        times[path] = stamp if stamps == "header" and stamp in arrays else f"{topic}/{LOG_TIME}"
    return times


def masks_of(layout: EpisodeLayout, opened: OpenFile) -> dict[str, list[str]]:
    """Return the names of episodes in the lists of an open file, by the path of each list."""
    masks = {}
    for path, array in opened.all_arrays.items() if layout.container is not None else ():
        if path.startswith(MASKS):
            listed = array.json()
            masks[path] = [listed] if isinstance(listed, str) else listed
    return masks
