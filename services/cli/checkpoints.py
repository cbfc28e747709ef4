"""Commands about checkpoints: checkpoints, checkpoint, checkpoint-export, checkpoint-delete; and import-run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from services.cli import output
from services.cli.jobs import api
from services.cli.output import Json
from services.contracts.checkpoints import REASONS, CheckpointDetail

if TYPE_CHECKING:
    from services.client import Checkpoint

Which = Annotated[
    str, typer.Argument(metavar="ID", help="The checkpoint's number, or a source such as run:5@1000 or run:5@best.")
]


def checkpoints(
    run: Annotated[int | None, typer.Option(min=1, help="Only of this run.")] = None,
    min_step: Annotated[int | None, typer.Option(min=0, help="Only from this step on.")] = None,
    max_step: Annotated[int | None, typer.Option(min=0, help="Only up to this step.")] = None,
    reason: Annotated[str | None, typer.Option(help=f"Only those kept for it: {', '.join(REASONS)}.")] = None,
    model_type: Annotated[str | None, typer.Option(help="Only of this architecture, e.g. gpt2.")] = None,
    variant: Annotated[str | None, typer.Option(help="Only of runs of this variant, e.g. natq.")] = None,
    min_loss: Annotated[float | None, typer.Option(help="Only with this validation loss (nats) or more.")] = None,
    max_loss: Annotated[float | None, typer.Option(help="Only with this validation loss (nats) or less.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 20,
    json: Json = False,
) -> None:
    """List checkpoints, newest first."""
    found = list(
        api().checkpoints(
            run=run,
            min_step=min_step,
            max_step=max_step,
            reason=reason,
            model_type=model_type,
            variant=variant,
            min_loss=min_loss,
            max_loss=max_loss,
            limit=limit,
        )
    )
    if json:
        output.as_json(found)
        return
    output.table(
        ("checkpoint", "source", "run", "variant", "model", "kept as", "validation", "MB", "resumable", "stored"),
        (
            (
                each.id,
                f"run:{each.run_id}@{each.step}",
                each.run,
                each.variant,
                each.model_type,
                ", ".join(each.reasons),
                output.loss(each.validation_loss_nats),
                None if each.source else round(each.bytes / 1e6, 1),
                "yes" if each.resumable else "",
                output.ago(each.created_at),
            )
            for each in found
        ),
        widest=40,
    )


def checkpoint(
    which: Which,
    verify: Annotated[bool, typer.Option("--verify", help="Read all of its bytes and check them.")] = False,
    json: Json = False,
) -> None:
    """Show a checkpoint and its files."""
    found = api().checkpoint(which)
    if verify and found.detail.source:
        output.message(
            f"There is nothing to verify: checkpoint {found.id} was imported, its files are at {found.detail.source}."
        )
    elif verify:
        verified = found.verify()
        output.message(f"All {verified.bytes:,} bytes of {verified.files} files are as they were stored.")
    if json:
        output.as_json(found.detail)
        return
    _show(found.detail)
    if found.detail.files:
        output.data()
        output.table(("file", "bytes", "sha256"), ((file.name, file.bytes, file.sha256) for file in found.detail.files))


def checkpoint_export(
    which: Which,
    to: Annotated[Path, typer.Option("--to", file_okay=False, help="Folder to write; not there yet, or empty.")],
    resume_state: Annotated[
        bool, typer.Option("--resume-state", help="Add the optimizer's state, if it is stored.")
    ] = False,
    json: Json = False,
) -> None:
    """Write a checkpoint as a Hugging Face folder."""
    found = api().checkpoint(which)
    folder = found.export(to, resume_state=resume_state, say=output.message)
    if json:
        output.as_json({"folder": str(folder), **found.detail.model_dump(mode="json")})
        return
    output.data(f"Checkpoint {found.id} is in {folder}; its README.md tells what it is.")
    if found.detail.attention:
        output.message("Plain transformers would compute another attention for it: see README.md.")


def checkpoint_delete(
    which: Which,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    json: Json = False,
) -> None:
    """Delete a checkpoint that no open job needs (scope admin)."""
    found = api().checkpoint(which)
    if not yes:
        typer.confirm(f"Delete {_described(found)}?", abort=True, err=True)
    found.delete()
    if json:
        output.as_json({"id": found.id, "deleted": True})
    else:
        output.data(f"Checkpoint {found.id} is deleted.")


def import_run(
    models: Annotated[
        list[str],
        typer.Argument(metavar="MODEL…", help="path:DIR/*, hf:ORG/NAME@PATTERN, or single models of these forms."),
    ],
    name: Annotated[str | None, typer.Option(help="Name of the run.")] = None,
    json: Json = False,
) -> None:
    """Make a run of models that exist already, such as revisions of a repository; their files stay where they are."""
    imported = api().import_run(models, name=name)
    if json:
        output.as_json(imported)
        return
    output.data(f"Run {imported.id} has {len(imported.checkpoints)} checkpoints.")
    output.table(
        ("checkpoint", "source"), ((each.id, f"run:{imported.id}@{each.step}") for each in imported.checkpoints)
    )
    output.message(imported.note)


def _show(detail: CheckpointDetail) -> None:
    output.fields(
        [
            ("checkpoint", detail.id),
            ("run", f"{detail.run_id}: {detail.run}"),
            ("job", detail.job_id),
            ("variant", detail.variant),
            ("step", detail.step),
            ("kept as", ", ".join(detail.reasons)),
            ("source", f"checkpoint:{detail.id}, run:{detail.run_id}@{detail.step}"),
            ("imported from", detail.source),
            ("architecture", detail.model_type),
            ("attention", ", ".join(f"{k}={v}" for k, v in output.leaves(detail.attention or {})) or None),
            ("validation loss", output.loss(detail.validation_loss_nats, " nats")),
            ("identity", detail.identity),
            ("bytes", None if detail.source else f"{detail.bytes:,}"),
            ("resumable", "yes" if detail.resumable else "no"),
            ("stored", output.when(detail.created_at)),
        ]
    )


def _described(found: "Checkpoint") -> str:
    detail = found.detail
    return f"checkpoint {detail.id}, step {detail.step} of run {detail.run_id} ({detail.run})"
