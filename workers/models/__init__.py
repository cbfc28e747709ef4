"""Models: loaded from a vetted source, through the attention seam, and described."""

from workers.models.loaded import Architecture, LoadedModel
from workers.models.loading import load_model

__all__ = ["Architecture", "LoadedModel", "load_model"]
