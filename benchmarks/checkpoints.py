"""Checkpoints in Postgres against a plain file: ``python -m benchmarks.checkpoints [--rounds N] [--connections N]``.

A float32 model of the size of GPT-2 (124 million parameters, 498 MB), new weights in every round so that nothing is
stored already. Written: from tensors in memory until it is durable. Read: until the tensors are in memory, all bytes
checked by Keyhole and none by the other. The other is a safetensors file on the same disk, flushed (fsync), and beside
it the copy of its bytes through a loopback socket, as a worker on another host would need it; the times are added.
Rounds alternate; medians are printed, and CPU seconds of this process and, if they run on this machine, of the server's
sessions: take those where others use the machine. With KEYHOLE_DATABASE_URL unset a PostgreSQL is started for the run.
"""

import argparse
import os
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import psutil
from safetensors.numpy import load, load_file, save_file

from benchmarks.copy_rows import database_url
from db import checkpoint_store, stored_files
from db.checkpoint_store import NewCheckpoint
from db.connection import connect
from db.repositories import runs
from workers.lifecycle import Ledger

AIM = 1.5
WIDTH, LAYERS, VOCABULARY, CONTEXT = 768, 12, 50_257, 1024


def shapes(layers: int) -> dict[str, tuple[int, ...]]:
    """Tensors of GPT-2, embeddings tied."""
    found: dict[str, tuple[int, ...]] = {"wte": (VOCABULARY, WIDTH), "wpe": (CONTEXT, WIDTH), "ln_f": (WIDTH,)}
    for layer in range(layers):
        block = {"qkv": (WIDTH, 3 * WIDTH), "o": (WIDTH, WIDTH), "up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
        block |= {f"{name}.bias": (shape[1],) for name, shape in block.items()}
        found |= {f"h.{layer}.{name}": shape for name, shape in (block | {"ln_1": (WIDTH,), "ln_2": (WIDTH,)}).items()}
    return found


def weights(layers: int, seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {name: random.random(shape, dtype=np.float32) for name, shape in shapes(layers).items()}


def through_socket(content: bytes) -> tuple[float, bytearray]:
    """Seconds until the bytes are at the other end of a loopback connection, and what arrived there."""
    arrived = bytearray(len(content))

    def receive(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        view = memoryview(arrived)
        while view:
            view = view[connection.recv_into(view) :]

    with socket.create_server(("127.0.0.1", 0)) as listener:
        receiver = threading.Thread(target=receive, args=(listener,))
        receiver.start()
        started = time.perf_counter()
        with socket.create_connection(listener.getsockname()) as sender:
            sender.sendall(content)
            receiver.join()
        return time.perf_counter() - started, arrived


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def cpu_s(processes: list[psutil.Process]) -> float:
    return sum(sum(each.cpu_times()[:2]) for each in processes)


def sessions(ledgers: list[Ledger]) -> list[psutil.Process]:
    """The server's processes, where they are on this machine."""
    with suppress(psutil.Error):
        return [psutil.Process(each.transact(lambda conn: conn.info.backend_pid)) for each in ledgers]
    return []


class Round:
    """One model, written and read both ways."""

    def __init__(self, tensors: dict[str, np.ndarray], folder: Path) -> None:
        self.tensors, self.folder = tensors, folder
        self.id = 0  # of the checkpoint, once written

    def plain_write(self) -> float:
        path = self.folder / "plain.safetensors"

        def write() -> None:
            save_file(self.tensors, path)
            flush(path)

        return timed(write) + through_socket(path.read_bytes())[0]

    def plain_read(self) -> float:
        path = self.folder / "plain.safetensors"
        content = b""

        def read() -> None:
            nonlocal content
            content = path.read_bytes()

        reading = timed(read)
        copying, arrived = through_socket(content)
        return reading + copying + timed(lambda: load(bytes(arrived)))

    def write(self, ledger: Ledger, others: list[Ledger], run_id: int, step: int, store: str | None) -> float:
        path = self.folder / "model.safetensors"
        new = NewCheckpoint(step, ["interval"], {"model_type": "gpt2"}, "gpt2", None, False)

        def write() -> None:
            save_file(self.tensors, path)
            self.id = checkpoint_store.stored(
                ledger.transact,
                {path.name: path},
                store,
                lambda conn, files: checkpoint_store.commit(conn, run_id, new, files),
                [each.transact for each in others],
            )

        return timed(write)

    def read(self, ledger: Ledger) -> float:
        into = Path(tempfile.mkdtemp(dir=self.folder))

        def read() -> None:
            ledger.transact(lambda conn: stored_files.download(conn, self.id, into))
            load_file(into / "model.safetensors")

        return timed(read)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--connections", type=int, default=2, help="used at the same time to write")
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--store", default="", help="address of fsspec, or FOLDER for one on this disk; none: Postgres")
    options = parser.parse_args()
    names = ("plain write", "write", "again", "plain read", "read")
    seconds, cpu = ({name: [] for name in names} for _ in range(2))
    with database_url() as url, tempfile.TemporaryDirectory() as name:
        ledger = Ledger(url, 0.0)
        others = [ledger.another() for _ in range(options.connections - 1)]
        with connect(url) as conn:
            run_id = runs.insert_imported(conn, "benchmark", "nothing", 0, None)
        processes = [psutil.Process(), *sessions([ledger, *others])]
        store = f"file://{name}/store" if options.store == "FOLDER" else options.store or None
        for step in range(options.rounds + 1):
            with tempfile.TemporaryDirectory(dir=name) as folder:
                round_ = Round(weights(options.layers, step), Path(folder))
                plain = {"plain write": round_.plain_write, "plain read": round_.plain_read}
                keyhole = {
                    "write": partial(round_.write, ledger, others, run_id, step, store),
                    "read": partial(round_.read, ledger),
                    "again": partial(round_.write, ledger, others, run_id, 1_000_000 + step, store),
                }
                for what, work in (plain | keyhole if step % 2 else keyhole | plain).items():
                    before = cpu_s(processes)
                    taken = work()
                    if step:  # the first round warms up
                        seconds[what].append(taken)
                        cpu[what].append(cpu_s(processes) - before)
        with connect(url) as conn:
            conn.execute("DELETE FROM keyhole.run WHERE id = %s", (run_id,))
    size = sum(each.nbytes for each in weights(options.layers, 0).values()) / 1e6
    medians, of_cpu = ({what: statistics.median(values) for what, values in each.items()} for each in (seconds, cpu))
    print(f"{size:,.0f} MB, medians of {options.rounds} rounds; CPU of {len(processes)} processes")
    for what, value in medians.items():
        print(f"{what:<12} {value:6.2f} s  {size / value:7,.0f} MB/s  {of_cpu[what]:6.2f} CPU seconds")
    for what in ("write", "read"):
        ratio, ratio_of_cpu = (each[what] / each[f"plain {what}"] for each in (medians, of_cpu))
        print(f"{what:<5} takes {ratio:.2f} times as long (aim: {AIM}), {ratio_of_cpu:.2f} times the CPU seconds")
    print("`again` stores equal weights once more: nothing but hashes is sent.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
