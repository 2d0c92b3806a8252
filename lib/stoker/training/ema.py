"""The exponential moving average of the weights, which lies beside them and which training never reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from stoker.training.model.transformer import Model
from stoker.training.state import SavedState, load_parameters, model_tensors

FIRST_FILE = "ema-00001.safetensors"


class Average:
    """The average of a model's parameters, in float32: from step `from_step` on, where it is a copy of them.

    What is done at a step depends on the step alone, so a resumed run has the average of one never stopped.
    """

    def __init__(self, model: Model, saved: SavedState | None, ema: Mapping[str, Any]) -> None:
        """Takes the average of the checkpoint; begins with the weights of now where that has none.

        The model is not compiled yet. Memory is taken now, however late the average begins.
        """
        self._every, self._from_step = ema["every"], ema["from_step"]
        self._averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(ema["decay"]))  # type: ignore[no-untyped-call]
        self._averaged.n_averaged.fill_(1)  # it is a copy already
        if saved is not None and self.has_begun(saved.body["step"]) and FIRST_FILE in saved.body["files"]:
            load_parameters(saved, self.model, "ema")

    @property
    def model(self) -> Model:
        """The model that computes with the averaged weights."""
        return cast("Model", self._averaged.module)

    def has_begun(self, step: int) -> bool:
        return bool(step >= self._from_step)

    def is_changed_by(self, step: int) -> bool:
        return self.has_begun(step) and (step - self._from_step) % self._every == 0

    def update(self, step: int, model: Model) -> None:
        """Takes in the weights after a step that was applied."""
        if step == self._from_step:
            self._averaged.n_averaged.zero_()  # the next update is a copy
        if self.is_changed_by(step):
            self._averaged.update_parameters(model)

    def tensors(self, step: int) -> dict[str, Tensor]:
        """Returns what a checkpoint of this step holds of it."""
        return model_tensors(self.model) if self.has_begun(step) else {}
