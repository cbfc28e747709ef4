"""What the command says of an API that answers otherwise than it reads."""

import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def test_an_answer_of_another_release_is_told_and_no_traceback() -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b'{"items": [{"number": 1}]}'
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    done = subprocess.run(
        [str(Path(sys.executable).with_name("keyhole")), "runs"],
        env={"KEYHOLE_API_URL": url, "KEYHOLE_TOKEN": "kh_x", "PATH": "/usr/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    server.shutdown()
    server.server_close()
    assert done.returncode == 1
    assert "The API's answer is not as this command reads it: items.0.id: Field required" in done.stderr
    assert "of one release" in done.stderr
    assert "Traceback" not in done.stderr
