"""Model and dataset sources resolved to what they are now: vetted, pinned by commit or hash. Never imports torch."""

from services.sources.datasets import ResolvedDataset, resolve_dataset
from services.sources.models import ResolvedModel, resolve_model

__all__ = ["ResolvedDataset", "ResolvedModel", "resolve_dataset", "resolve_model"]
