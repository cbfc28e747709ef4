"""Documents of a hub data set, streamed at one commit; no dataset script is ever run."""

from collections.abc import Iterator
from pathlib import Path

import httpx2  # the client of huggingface_hub
from datasets import load_dataset
from datasets.exceptions import DatasetNotFoundError, DatasetsError
from huggingface_hub.errors import HfHubHTTPError

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.sources import DatasetSource
from services.sources.hub import unreachable
from workers.data.pieces import Piece, document_pieces
from workers.data.text_documents import text_field


def hub_pieces(source: DatasetSource, first: int = 0) -> Iterator[Piece]:
    """Rows of a split in order, from number ``first`` on, as pieces; ``source.revision`` is a commit."""
    if Path(source.name).exists():  # load_dataset would take a folder of that name for the data set
        raise KeyholeError(
            ErrorCode.INVALID_SOURCE,
            f"{source.name!r} is also a path in the worker's directory.",
            "Start the worker elsewhere.",
        )
    try:
        rows = load_dataset(source.name, source.config, split=source.split, revision=source.revision, streaming=True)
        for number, row in enumerate(rows.skip(first) if first else rows, first):
            where = f"Row {number:,} of {source.name}"
            yield from document_pieces(number, f"row {number}", (text_field(row, source.field, where),))
    except (HfHubHTTPError, httpx2.HTTPError, ConnectionError) as error:
        raise unreachable("dataset", source.name, error) from error
    except (DatasetNotFoundError, FileNotFoundError) as error:
        raise KeyholeError(
            ErrorCode.DATASET_NOT_FOUND, f"The hub has no data for {source}: {error}", "Check name and configuration."
        ) from error
    except (DatasetsError, ValueError, RuntimeError) as error:  # unknown configuration or split; a script
        raise KeyholeError(
            ErrorCode.DATASET_INVALID,
            f"{source} cannot be streamed: {error}",
            "Choose with ?config=NAME&split=NAME; data sets that need a script are not read.",
        ) from error
