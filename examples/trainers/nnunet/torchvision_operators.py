"""Import before nnU-Net: lets torchvision be imported beside another build of torch than it was made for.

Its operators `nms` and `qnms` are missing then. Nothing that nnU-Net trains here calls them.
"""

import torch

try:
    import torchvision  # noqa: F401
except RuntimeError:
    _library = torch.library.Library("torchvision", "DEF")
    for _name in ("nms", "qnms"):
        _library.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
