"""Publish a store as a dataset of the Hugging Face Hub: ``python publish.py train.zarr ORG/NAME``.

It prints the URL that reads it. If it was interrupted, run it again.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from huggingface_hub import CommitOperationAdd, HfApi, RepoFile

import unistore

ROOT = "zarr.json"  # of the folder of a store: without it, there is no store
MOST_ENTRIES = 10_000  # of a folder, as the Hub recommends


def publish(store: Path, repository: str) -> str:
    """Upload a store and a card, and return the URL of the store at the last commit."""
    sizes = checked_sizes(store)
    name = store.name
    api = HfApi()
    api.create_repo(repository, repo_type="dataset", exist_ok=True)
    if api.file_exists(repository, f"{name}/{ROOT}", repo_type="dataset"):
        sys.exit(f"{repository}: has a store {name}; rename your store to publish it next to that one")

    api.upload_folder(
        repo_id=repository, repo_type="dataset", folder_path=store, path_in_repo=name, ignore_patterns=ROOT
    )
    check_arrived(api, repository, name, sizes)
    last = [CommitOperationAdd(f"{name}/{ROOT}", store / ROOT)]
    if not api.file_exists(repository, "README.md", repo_type="dataset"):
        last.append(CommitOperationAdd("README.md", card(store, repository).encode()))
    commit = api.create_commit(repository, last, commit_message=f"Add {name}", repo_type="dataset")
    return f"hf://datasets/{repository}@{commit.oid}/{name}"


def checked_sizes(store: Path) -> dict[str, int]:
    """Return the size of each file of a store in bytes, by its path in the repository."""
    unistore.Store(store)  # raises unless the store is finished
    sizes: dict[str, int] = {}
    entries: Counter[Path] = Counter()
    for path in store.rglob("*"):
        entries[path.parent] += 1
        if path.is_file():
            sizes[f"{store.name}/{path.relative_to(store).as_posix()}"] = path.stat().st_size
    folder, count = entries.most_common(1)[0]
    if count >= MOST_ENTRIES:
        sys.exit(f"{folder}: {count:,} entries; convert the sources to several stores, and publish each")
    return sizes


def check_arrived(api: HfApi, repository: str, name: str, sizes: dict[str, int]) -> None:
    """End the program unless the repository has every file of a store but its root."""
    tree = api.list_repo_tree(repository, name, recursive=True, repo_type="dataset")
    arrived = {entry.path: entry.size for entry in tree if isinstance(entry, RepoFile)}
    missing = [path for path in sizes if path != f"{name}/{ROOT}" and arrived.get(path) != sizes[path]]
    if missing:
        sys.exit(f"{repository}: {missing[0]} is not there as it is here; run the same command again")


def card(store: Path, repository: str) -> str:
    """Return a card: family, splits and arrays of a store, and three lines that read it."""
    about = unistore.inspect(store).details
    count, table = about["samples"]["count"], about["samples"]["table"]
    lines = ["---", "tags: [unistore, zarr]", "viewer: false", "---", "", f"# {store.name}", ""]
    lines += [f"Family `{about['family']}`, {count:,} samples (one for each row of the table `{table}`).", ""]
    lines += [f"- split `{split}`: {count:,} samples" for split, count in about["splits"].items()]
    lines += ["", "| array | shape | dtype |", "|---|---|---|"]
    for array in about["arrays"]:
        if not array["bookkeeping"]:
            shape = " × ".join(f"{length:,}" for length in array["shape"])
            lines.append(f"| `{array['path']}` | {shape} | {array['dtype']} |")
    url = f"hf://datasets/{repository}/{store.name}"
    code = ["import unistore", f'dataset = unistore.Dataset("{url}")', "sample = dataset[0]"]
    lines += ["", "Install unistore with its extra `hub`. Then:", "", "```python", *code, "```", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    print(publish(Path(sys.argv[1]).absolute(), sys.argv[2]))
