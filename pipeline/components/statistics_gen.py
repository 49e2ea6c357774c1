"""StatisticsGen of TFX with options for images."""

from typing import Any

from tfx import components as tfx_components

from pipeline.components.base import FingerprintedComponent
from pipeline.quality.statistics import options_for
from pipeline.settings.image_data import Images


class StatisticsGen(FingerprintedComponent, tfx_components.StatisticsGen):
    """Compute the statistics of every split with TFX's executor."""

    def __init__(self, *, images: Images | None = None, kept: str = "", **kwargs: Any):
        """Create the component.

        Args:
            images: Settings of images, if the examples hold any.
            kept: Folder in which the fast engine stores the statistics of each file of a window of spans; or "".
            **kwargs: For TFX's component.
        """
        super().__init__(stats_options=options_for(images.column if images else None), **kwargs)
        if kept:
            self.exec_properties["kept"] = kept
