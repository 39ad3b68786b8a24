#!/usr/bin/env bash
# Loader, data and rows under Debian's Python with Debian's torch, of which pip has no CPU build: trixie has 3.13,
# sid 3.14. In a root of its own, build/debian-SUITE (2.5 GB, about five minutes, kept); by root, with debootstrap.
#
#     tools/debian_python.sh sid
set -euo pipefail
suite=${1:?a suite of Debian: trixie or sid}
cd "$(dirname "$0")/.."
command -v debootstrap >/dev/null || { echo "debootstrap is not installed: apt-get install debootstrap"; exit 1; }
root=$PWD/build/debian-$suite
if ! [ -e "$root/.ready" ]; then
  rm -rf "$root"
  mkdir -p build
  debootstrap --variant=minbase --include=ca-certificates "$suite" "$root" http://deb.debian.org/debian
  cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
  apt="apt-get -q -o Acquire::Check-Valid-Until=false"  # the list of sid may be expired
  chroot "$root" sh -c "$apt update && $apt install -y --no-install-recommends python3-torch python3-dev python3-venv gcc libc6-dev"
  touch "$root/.ready"
fi
mountpoint -q "$root/proc" || mount -t proc proc "$root/proc"
mountpoint -q "$root/dev/shm" || mount --bind /dev/shm "$root/dev/shm"
trap 'umount --lazy "$root/proc" "$root/dev/shm"' EXIT
rm -rf "$root/unistore"
mkdir "$root/unistore"
git ls-files -z | tar --null --files-from=- --create | tar --extract --directory="$root/unistore"
chroot "$root" sh -c '
  cd /unistore
  unset PIP_FIND_LINKS PYTHONDONTWRITEBYTECODE
  python3 -m venv --system-site-packages .venv
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[images,filters,cloud,robots]" \
    faery hypothesis nibabel pytest pytest-timeout simpleitk pytest-xdist torchdata
  .venv/bin/python -c "import sys, torch, numpy, zarr, numcodecs, h5py
print(\"Python\", sys.version.split()[0], *(f\"{m.__name__} {m.__version__}\" for m in (torch, numpy, zarr, numcodecs, h5py)))"
  .venv/bin/python -m pytest -q -n logical -m "not nightly" \
    tests/unistore/loader tests/unistore/order tests/unistore/data tests/unistore/zarr3 tests/unistore/test_golden.py \
    tests/converters/rows
'
