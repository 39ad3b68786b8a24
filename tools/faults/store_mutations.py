"""Changes of a sealed store, as plain JSON, and a new seal, as an attacker could make them.

A mutation is a list of steps, each an object with ``do``:

=============  =====================================================================================
``values``     change elements of an array: ``path``, ``at`` (flat positions), ``to``
``json``       change or remove a member of a ``zarr.json``: ``file``, ``member`` (keys), ``to``
``manifest``   change a line of the manifest: ``line``, ``member``, ``to``; or ``text``, the line
``bytes``      change bytes of a file: ``file``, ``at``, ``to`` (hexadecimal)
``size``       truncate or extend a file: ``file``, ``to``
``kind``       replace a file: ``file``, ``to``: missing, fifo, link, zero, folder
``add``        add a file that belongs to no array: ``file``, ``listed``
=============  =====================================================================================
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
import zarr

from unistore.store.manifest import sign_root
from unistore.store.names import MANIFEST, ROOT

Step = dict[str, Any]

NUMBERS = [0, 1, -1, 2, 3, 7, 255, 2**15, 2**31 - 1, 2**31, -(2**31), 2**40, 2**63 - 1, -(2**63)]
OTHERS: list[Any] = [
    *(None, True, False, 0, -1, 1, 3, 1e308, 10**12, 10**30, "", "x", "../x", "a\nb", "uint8", "object"),
    *([], {}, [0], [1, 2], [[]], ["x"], {"name": "x"}, {"x": 1}),
]
ACTIONS = (
    *("values",) * 9,
    *("json root",) * 4,
    *("json array",) * 4,
    *("rule",) * 4,
    *("json group", "bytes", "size", "kind", "add", "manifest", "field", "text", "text"),
)


def apply(store: Path, steps: list[Step], canary: Path) -> None:
    """Change a store and seal it again; links lead to `canary`."""
    lines = (store / MANIFEST).read_text().splitlines()
    entries = {entry["key"]: entry for entry in map(json.loads, lines)}
    root = json.loads((store / ROOT).read_text())
    for step in steps:
        _ACT[step["do"]](store, step, root, canary)
        if step["do"] == "add" and step["listed"]:
            entries[step["file"]] = {"key": step["file"]}
    for key, entry in entries.items():
        path = store / key
        if path.is_file() and not path.is_symlink():
            data = path.read_bytes()
            entry |= {"bytes": len(data), "checksum": xxhash.xxh3_128_hexdigest(data)}
    listed = [json.dumps(entry, separators=(",", ":")) for _, entry in sorted(entries.items())]
    for step in steps:
        if step["do"] == "manifest":
            _change_line(listed, step)
    manifest = "".join(f"{line}\n" for line in listed).encode("utf-8", "surrogatepass")
    if not any(step.get("file") == MANIFEST for step in steps):
        (store / MANIFEST).write_bytes(manifest)
    if any(step.get("file") == ROOT and step["do"] != "json" for step in steps):
        return
    seal = _seal(root)
    if seal is not None:
        last = seal.pop("root", None)
        if not any("seal" in step.get("member", ()) for step in steps):
            sizes = [entry.get("bytes", 0) for entry in entries.values()]
            seal |= {"digest": xxhash.xxh3_128_hexdigest(manifest), "files": len(sizes), "bytes": sum(sizes)}
        if last is not None:
            seal["root"] = "0" * 32
    document = json.dumps(root, indent=1).encode()
    (store / ROOT).write_bytes(sign_root(document) if b'"root": "%b"' % (b"0" * 32) in document else document)


def _seal(root: Any) -> dict[str, Any] | None:
    try:
        seal = root["attributes"]["unistore"]["seal"]
    except (LookupError, TypeError):
        return None
    return seal if isinstance(seal, dict) else None


def _change_values(store: Path, step: Step, root: Any, canary: Path) -> None:
    array = zarr.open_array(store / step["path"], mode="r+")
    values = np.asarray(array[...])
    flat = values.reshape(-1)
    for at, to in zip(step["at"], step["to"], strict=True):
        flat[at] = np.array(to).astype(flat.dtype) if not isinstance(to, int) else _wrapped(to, flat.dtype)
    array[...] = values


def _wrapped(value: int, dtype: np.dtype[Any]) -> Any:
    """An integer clipped to the range of a dtype."""
    if dtype.kind not in "iu":
        return dtype.type(value)
    limits = np.iinfo(dtype)
    return dtype.type(min(max(value, limits.min), limits.max))


def _change_json(store: Path, step: Step, root: Any, canary: Path) -> None:
    document = root if step["file"] == ROOT else json.loads((store / step["file"]).read_text())
    place = document
    for key in step["member"][:-1]:
        place = place[key]
    last = step["member"][-1]
    if "to" in step:
        place[last] = step["to"]
    else:
        del place[last]
    if step["file"] != ROOT:
        (store / step["file"]).write_text(json.dumps(document))
        with contextlib.suppress(LookupError, TypeError):  # the consolidated metadata, if it is still there
            root["consolidated_metadata"]["metadata"][step["file"].removesuffix(f"/{ROOT}")] = document


def _change_bytes(store: Path, step: Step, root: Any, canary: Path) -> None:
    data = bytearray((store / step["file"]).read_bytes())
    to = bytes.fromhex(step["to"])
    data[step["at"] : step["at"] + len(to)] = to
    (store / step["file"]).write_bytes(data)


def _change_size(store: Path, step: Step, root: Any, canary: Path) -> None:
    os.truncate(store / step["file"], step["to"])


def _change_kind(store: Path, step: Step, root: Any, canary: Path) -> None:
    path = store / step["file"]
    path.unlink()
    if step["to"] == "fifo":
        os.mkfifo(path)
    elif step["to"] == "link":
        path.symlink_to(canary / "victim")
    elif step["to"] == "zero":
        path.symlink_to("/dev/zero")
    elif step["to"] == "folder":
        path.mkdir()


def _add(store: Path, step: Step, root: Any, canary: Path) -> None:
    path = store / step["file"]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"{}")


def _change_line(lines: list[str], step: Step) -> None:
    if "text" in step:
        lines[step["line"]] = step["text"]
        return
    entry = json.loads(lines[step["line"]])
    entry[step["member"]] = step["to"]
    lines[step["line"]] = json.dumps(entry, separators=(",", ":"))


_ACT = {
    "values": _change_values,
    "json": _change_json,
    "bytes": _change_bytes,
    "size": _change_size,
    "kind": _change_kind,
    "add": _add,
    "manifest": lambda *_: None,
}


def draw(store: Path, rng: random.Random) -> tuple[str, list[Step]]:
    """Kind and steps of a random mutation of a store."""
    action = rng.choice(ACTIONS)
    root = json.loads((store / ROOT).read_text())
    fields = root["attributes"]["unistore"]["fields"]
    keys = [json.loads(line)["key"] for line in (store / MANIFEST).read_text().splitlines()]
    shards = [key for key in keys if not key.endswith(ROOT)]
    documents = [key for key in keys if key.endswith(ROOT)]
    arrays = [key for key in documents if key.removesuffix(f"/{ROOT}") in fields]
    anything = rng.choice([*keys, ROOT, MANIFEST])
    if action == "values":
        return action, _draw_values(store, sorted(fields), rng)
    if action == "text":
        return action, _draw_text(store, [path for path in sorted(fields) if path.endswith("/data")], rng)
    if action == "field":
        unistore = ["attributes", "unistore", "fields"]
        gone = {"do": "json", "file": ROOT, "member": [*unistore, rng.choice(sorted(fields))]}
        more = {"do": "json", "file": ROOT, "member": [*unistore, rng.choice(["x", "a/../b", "points"])]}
        return action, [rng.choice([gone, more | {"to": {"axes": ["row"]}}])]
    if action == "rule":
        return action, _draw_rule(fields, rng)
    if action.startswith("json"):
        groups = [key for key in documents if key not in arrays] or arrays
        file = {"json root": ROOT, "json array": rng.choice(arrays)}.get(action, rng.choice(groups))
        return action, [_draw_member(file, json.loads((store / file).read_text()), rng)]
    if action == "bytes":
        file = rng.choice(shards)
        at = rng.randrange(max(1, (store / file).stat().st_size))
        return action, [
            {"do": "bytes", "file": file, "at": at, "to": rng.randbytes(rng.choice([1, 4, 8])).hex()}
        ]
    if action == "size":
        size = (store / anything).stat().st_size
        to = rng.choice([0, 1, size // 2, max(0, size - 1), size + 1, size + 4096])
        return action, [{"do": "size", "file": anything, "to": to}]
    if action == "kind":
        to = rng.choice(["missing", "fifo", "link", "zero", "folder"])
        return action, [{"do": "kind", "file": anything, "to": to}]
    if action == "add":
        file = rng.choice(["x", "points/c/99", f"{rng.choice(sorted(fields))}/c/77", f"extra/{ROOT}"])
        return action, [{"do": "add", "file": file, "listed": rng.random() < 0.5}]
    line = rng.randrange(len(keys))
    if rng.random() < 0.3:
        return action, [
            {"do": "manifest", "line": line, "text": rng.choice(["", "{", "[]", "[" * 5000, "\udc80"])}
        ]
    member = rng.choice(["key", "bytes", "checksum", "rows", "content"])
    return action, [{"do": "manifest", "line": line, "member": member, "to": rng.choice(OTHERS)}]


def _draw_rule(fields: dict[str, Any], rng: random.Random) -> list[Step]:
    """Remove a member of a rule, have it name another array, or take the rule of another array."""
    paths = [path for path in sorted(fields) if fields[path]["rule"]]
    path, other = rng.choice(paths), rng.choice(paths)
    rule = dict(fields[path]["rule"])
    name = rng.choice(sorted(rule))
    change = rng.choice(["remove", "widen", "cross", "swap"])
    if change == "swap":
        rule = fields[other]["rule"]
    elif change == "remove" or isinstance(rule[name], bool):
        del rule[name]
    elif isinstance(rule[name], str):
        rule[name] = other
    elif name in ("rows", "indexes"):
        rule[name] = [
            other if change == "cross" else rule[name][0],
            rule[name][1] + rng.choice([0, 1, 1 << 40]),
        ]
    elif isinstance(rule[name], list):
        rule[name] = rule[name][:-1]
    else:
        rule[name] = rng.choice(OTHERS)
    member = ["attributes", "unistore", "fields", path, "rule"]
    return [{"do": "json", "file": ROOT, "member": member, "to": rule}]


def _draw_values(store: Path, fields: list[str], rng: random.Random) -> list[Step]:
    """Change elements, mostly of index arrays."""
    indices = [
        f for f in fields if f.startswith(("sources/", "segments/", "splits/", "episodes/", "sequences/"))
    ]
    indices += [
        f for f in fields if f.endswith(("offsets", "extent", "coords", "length", "present", "voxel"))
    ]
    path = rng.choice(indices if indices and rng.random() < 0.85 else fields)
    array = zarr.open_array(store / path, mode="r")
    size = int(np.prod(array.shape))
    if not size:
        return []
    count = min(size, rng.choice([1, 1, 1, 2, 8]))
    at = [rng.choice([0, size - 1, rng.randrange(size)]) for _ in range(count)]
    values = np.asarray(array[...]).reshape(-1)
    to: list[Any] = []
    for each in at:
        now = values[each].item()
        near = [now + 1, now - 1, now * 2] if isinstance(now, int) and not isinstance(now, bool) else []
        to.append(rng.choice([*near, *near, *NUMBERS, values[rng.randrange(size)].item()]))
    return [{"do": "values", "path": path, "at": at, "to": to}]


def _draw_text(store: Path, paths: list[str], rng: random.Random) -> list[Step]:
    """Change bytes of text columns."""
    path = rng.choice(paths) if paths else "sources/path/data"
    size = zarr.open_array(store / path, mode="r").shape[0]
    if not size:
        return []
    at = rng.randrange(size)
    return [
        {"do": "values", "path": path, "at": [at], "to": [rng.choice([0, 10, 34, 46, 47, 123, 128, 255])]}
    ]


def _draw_member(file: str, document: Any, rng: random.Random) -> Step:
    """Change or remove a random member of a document."""
    members = list(_members(document))
    member = rng.choice(members)
    now = document
    for key in member:
        now = now[key]
    step: Step = {"do": "json", "file": file, "member": member}
    if rng.random() < 0.2 and isinstance(member[-1], str):
        return step
    near: list[Any] = [now + 1, now - 1, 2 * now, -now] if type(now) in (int, float) else []
    near += [[now], str(now), now[:-1]] if isinstance(now, list | str) else []
    return step | {"to": rng.choice([*near, *OTHERS])}


def _members(document: Any) -> Any:
    """Keys of every member, at any depth."""
    pairs = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in pairs:
        yield [key]
        if isinstance(value, dict | list):
            yield from ([key, *rest] for rest in _members(value))


def copy_store(store: Path, to: Path) -> Path:
    """A fresh copy of a store."""
    if to.exists() or to.is_symlink():
        shutil.rmtree(to)
    return Path(shutil.copytree(store, to))
