"""Batches of any structure through memory and back."""

from __future__ import annotations

import dataclasses
import gc
import os
import socket
import weakref
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from unistore.loader.worker_pool import Channel, decode, encode, open_channel
from unistore.memory import ALIGNMENT, Arena, Slab, open_shared_memory


class Point(NamedTuple):
    x: object
    y: object


@dataclasses.dataclass
class Holder:
    inside: object


class Memory:
    """An arena of private memory, and what the parent would see of it."""

    def __init__(self, size=1 << 16):
        self.slab = Slab(size) if size else None
        self.arena = Arena(self.slab)

    def lease(self):
        return self.slab.lease(lambda: None) if self.slab else b""


def there_and_back(batch, size=1 << 16, *, copy=False):
    memory = Memory(size)
    return decode(encode(batch, memory.arena), memory.lease(), copy=copy)


@settings(max_examples=25)
@given(
    array=npst.arrays(
        st.one_of(
            npst.scalar_dtypes(),
            npst.unicode_string_dtypes(),
            npst.array_dtypes(npst.integer_dtypes(), max_size=3),
        ),
        npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=6),
    ),
    data=st.data(),
    copy=st.booleans(),
    size=st.sampled_from([0, 1 << 16]),
)
def test_any_view_of_any_array_arrives_unchanged(array, data, copy, size):
    axes = data.draw(st.permutations(range(array.ndim)))
    view = array.transpose(axes)
    if view.ndim and view.shape[0] > 1:
        view = view[:: data.draw(st.sampled_from([1, 2, -1]))]
    found = there_and_back({"a": [view]}, size, copy=copy)["a"][0]
    native = view.dtype.newbyteorder("=")  # numpy pickles some types in the byte order of the machine
    assert found.dtype.newbyteorder("=") == native
    assert found.astype(native).tobytes() == view.astype(native).tobytes()
    assert found.flags.writeable


def test_arrays_in_the_slab_are_not_copied():
    memory = Memory()
    array = memory.arena.allocate((4, 5, 3), np.dtype(np.float32))
    array[:] = np.arange(60).reshape(4, 5, 3)
    used = memory.arena.needed
    image = array.transpose(2, 0, 1)
    message = encode({"image": image, "tensor": torch.from_numpy(array[1:3])}, memory.arena)
    assert memory.arena.needed == used
    found = decode(message, memory.lease())
    array[2] = 7
    assert np.array_equal(found["image"], image)
    assert found["image"].strides == image.strides
    assert (found["tensor"][1] == 7).all()


@pytest.mark.parametrize("size", [0, 1 << 16], ids=["inside the message", "in the slab"])
@pytest.mark.parametrize("columns", [4, 3], ids=["dense", "with gaps"])
def test_images_keep_the_order_of_their_axes(size, columns):
    images = np.arange(2 * 5 * 6 * 4, dtype=np.uint8).reshape(2, 5, 6, 4)[..., :columns].transpose(0, 3, 1, 2)
    found = there_and_back(images, size)
    assert np.array_equal(found, images)
    assert found.strides == (5 * 6 * columns, 1, 6 * columns, columns)
    assert torch.from_numpy(found).is_contiguous(memory_format=torch.channels_last)


def test_memory_is_free_with_the_last_view_without_a_garbage_collection():
    gc.disable()
    try:
        memory = Memory()
        batch = Holder({"array": np.arange(5), "tensor": torch.arange(6)})
        array = weakref.ref(batch.inside["array"])
        message = encode(batch, memory.arena)
        del batch
        assert array() is None
        freed = []
        found = decode(message, memory.slab.lease(lambda: freed.append(True)))
        view = found.inside["tensor"][2:]
        del found
        assert not freed
        del view
        assert freed
    finally:
        gc.enable()


def test_structures_objects_and_tensors_arrive_unchanged():
    batch = {
        "point": Point(np.arange(3), [torch.arange(4), None]),
        "holder": Holder({"a": (1, 2.5, "text")}),
        "object": np.array(["a", None], dtype=object),
        "record": np.array([(1, 2.0)], dtype=[("n", "i4"), ("v", "f8")]),
        "time": np.array(["2020-01-01"], dtype="datetime64[ns]"),
        "scalar": np.float32(2.5),
        "sparse": torch.eye(3).to_sparse(),
        "half": torch.ones(4, dtype=torch.bfloat16),
        "bool": torch.tensor([True, False]),
        "zero-dim": torch.tensor(3.5),
        "conjugate": torch.tensor([1 + 2j]).conj(),
        "expanded": torch.arange(3).expand(4, 3),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "buffer": bytearray(b"abc"),
    }
    for copy in (False, True):
        found = there_and_back(batch, copy=copy)
        assert found["point"].x.tolist() == [0, 1, 2]
        assert found["point"].y[0].tolist() == [0, 1, 2, 3]
        assert found["holder"] == batch["holder"]
        assert found["object"].tolist() == ["a", None]
        assert found["record"]["v"].tolist() == [2.0]
        assert found["time"] == batch["time"]
        assert type(found["scalar"]) is np.float32
        assert torch.equal(found["sparse"].to_dense(), torch.eye(3))
        assert found["half"].dtype is torch.bfloat16
        for key in ("bool", "zero-dim", "conjugate", "expanded", "parameter"):
            assert torch.equal(found[key], batch[key])
        assert isinstance(found["parameter"], torch.nn.Parameter)
        assert found["buffer"] == b"abc"


def test_the_same_object_stays_the_same_memory():
    offsets = np.arange(5)
    tensor = torch.arange(5)
    found = there_and_back([offsets, offsets, tensor, tensor])
    found[0][2] = 9
    found[2][3] = 8
    assert found[1][2] == 9
    assert found[3][3] == 8


@pytest.mark.parametrize("size", [0, 1 << 16])
def test_an_arena_aligns_and_never_overlaps(size):
    memory = Memory(size)
    arrays = [memory.arena.allocate((n,), np.dtype(np.uint8)) for n in (1, 5000, 70_000, 60_000, 3)]
    for number, array in enumerate(arrays):
        array[:] = number
    assert all((array == number).all() for number, array in enumerate(arrays))
    inside = [memory.arena.find(array.ctypes.data, len(array)) for array in arrays]
    assert inside == ([None] * 5 if not size else [0, ALIGNMENT, None, 5248, 65280])
    assert memory.arena.needed == 128 + 5120 + 70_016 + 60_032 + 128


@pytest.fixture
def default_timeout():
    """A timeout of new sockets, as scripts that download set it."""
    socket.setdefaulttimeout(5)
    yield
    socket.setdefaulttimeout(None)


@pytest.mark.usefixtures("default_timeout")
def test_descriptors_go_with_their_message_while_answers_are_under_way():
    ours, end = open_channel()
    theirs = Channel(end)
    numbers = []
    for number in range(60):
        numbers.append(open_shared_memory(4096))
        os.pwrite(numbers[-1], bytes([number]) * 9, 0)
    theirs.send("an answer that nobody has read yet")
    ours.send("first", numbers[:1])
    ours.send("none")
    ours.send("many", numbers[1:])
    received = theirs.receive()
    assert [(message, len(descriptors)) for message, descriptors in received] == [
        ("first", 1),
        ("none", 0),
        ("many", 59),
    ]
    copies = [descriptor for _, descriptors in received for descriptor in descriptors]
    assert [os.pread(copy, 9, 0) for copy in copies] == [bytes([n]) * 9 for n in range(60)]
    assert ours.receive() == [("an answer that nobody has read yet", [])]
    for descriptor in numbers + copies:
        os.close(descriptor)
    theirs.close()
    with pytest.raises(EOFError):
        ours.receive()
    ours.close()


def test_arrays_that_found_no_room_count_as_needed():
    memory = Memory(1 << 16)
    encode({"small": np.zeros(16, np.float64), "large": np.zeros(100_000, np.float64)}, memory.arena)
    assert memory.arena.needed == 16 * 8 + 100_000 * 8  # both are multiples of the alignment
