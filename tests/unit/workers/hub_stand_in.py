"""A small HTTP server that answers as the hub does, for one revision of each repository kept in a folder."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit


def commit_of(folder: Path) -> str:
    """Forty hex digits that change with the repository's content."""
    digest = hashlib.sha1()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


@contextmanager
def hub(root: Path) -> Iterator[str]:
    """Serve ``root/models/ORG/NAME`` and ``root/datasets/ORG/NAME``; yields the endpoint's URL.

    Every repository says that it has the branches ``main``, ``step9`` and ``step10`` and the tag ``v1``.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *arguments: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def do_POST(self) -> None:
            length = int(self.headers.get("content-length", 0))
            asked = json.loads(self.rfile.read(length) or b"{}").get("paths", [])
            folder = self._repository()
            entries = [entry for entry in _tree(folder) if entry["path"] in asked] if folder else []
            self._send(200, json.dumps(entries).encode(), "application/json")

        def _repository(self) -> Path | None:
            """The folder that the path names, in an API call or a download."""
            parts = unquote(urlsplit(self.path).path).strip("/").split("/")
            if parts[0] == "api":
                parts = parts[1:]
            elif parts[0] != "datasets":
                parts = ["models", *parts]
            folder = root.joinpath(*parts[:3])
            self.rest = parts[3:]
            return folder if folder.is_dir() else None

        def _answer(self, body: bool) -> None:
            folder = self._repository()
            commit = commit_of(folder) if folder else ""
            if folder is None or (len(self.rest) > 1 and self.rest[1] not in ("main", commit)):
                code = "RepoNotFound" if folder is None else "RevisionNotFound"
                self._send(404, b"", "text/plain", {"X-Error-Code": code})
            elif "/api/" in self.path and self.rest[:1] == ["refs"]:
                self._send(200, json.dumps(_references(commit)).encode(), "application/json")
            elif "/api/" in self.path and self.rest[:1] == ["tree"]:
                self._send(200, json.dumps(_tree(folder)).encode(), "application/json")
            elif "/api/" in self.path:
                files = [{"rfilename": entry["path"]} for entry in _tree(folder)]
                name = "/".join(folder.parts[-2:])
                info = {"id": name, "sha": commit, "siblings": files, "private": False, "tags": [], "downloads": 0}
                self._send(200, json.dumps(info).encode(), "application/json")
            else:
                self._file(folder.joinpath(*self.rest[2:]), commit, body)

        def _file(self, path: Path, commit: str, body: bool) -> None:
            if not path.is_file():
                self._send(404, b"", "text/plain", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
                return
            data = path.read_bytes()
            etag = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
            wanted = self.headers.get("range")
            if wanted:
                first, _, last = wanted.removeprefix("bytes=").partition("-")
                part = data[int(first) : int(last) + 1 if last else None]
                etag["Content-Range"] = f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}"
                self._send(206, part, "application/octet-stream", etag, body)
            else:
                self._send(200, data, "application/octet-stream", etag, body)

        def _send(
            self, status: int, data: bytes, kind: str, headers: dict[str, str] | None = None, body: bool = True
        ) -> None:
            self.send_response(status)
            for key, value in {"Content-Type": kind, "Content-Length": str(len(data)), **(headers or {})}.items():
                self.send_header(key, value)
            self.end_headers()
            if body and self.command != "HEAD":
                self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _references(commit: str) -> dict[str, list[dict[str, str]]]:
    def named(kind: str, *names: str) -> list[dict[str, str]]:
        return [{"name": name, "ref": f"refs/{kind}/{name}", "targetCommit": commit} for name in names]

    return {"branches": named("heads", "main", "step10", "step9"), "tags": named("tags", "v1"), "converts": []}


def _tree(folder: Path) -> list[dict[str, object]]:
    return [
        {
            "type": "file",
            "path": str(path.relative_to(folder)),
            "size": path.stat().st_size,
            "oid": hashlib.sha1(path.read_bytes()).hexdigest(),
        }
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    ]
