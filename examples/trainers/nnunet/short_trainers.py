"""Trainers of two short epochs with a seed for each epoch, so that trainings can be compared."""

import os
import random

import numpy as np
import torch
from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer
from unistore_trainer import nnUNetTrainerUnistore


def seed_all(seed: int) -> None:
    """Seed the three generators that nnU-Net draws from."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)


class Short:
    """Five iterations in each of two epochs. ``STOP_AFTER=1`` stops after one, as a killed job does."""

    def initialize(self) -> None:
        """Set up the network for a short training."""
        self.num_epochs = 2
        self.num_iterations_per_epoch = 5
        self.num_val_iterations_per_epoch = 2
        self.save_every = 1
        seed_all(0)
        super().initialize()

    def on_train_epoch_start(self) -> None:
        """Seed the order and the augmentations of an epoch. nnU-Net itself saves no random state."""
        seed_all(self.current_epoch)
        super().on_train_epoch_start()

    def on_epoch_end(self) -> None:
        """Stop where `STOP_AFTER` says."""
        super().on_epoch_end()
        if os.environ.get("STOP_AFTER") == str(self.current_epoch):
            raise KeyboardInterrupt


class nnUNetTrainerShort(Short, nnUNetTrainer):  # noqa: N801
    """nnU-Net's own trainer, shortened."""


class nnUNetTrainerUnistoreShort(Short, nnUNetTrainerUnistore):  # noqa: N801
    """The trainer that reads a store, shortened."""
