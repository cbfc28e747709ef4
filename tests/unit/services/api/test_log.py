"""What the API's log says of a defect."""

import json
import subprocess
import sys


def test_a_traceback_names_the_place_and_no_values() -> None:
    statement = (
        "from services.api import log\nimport structlog\nlog.configure()\n"
        "def fails(authorization):\n    raise ValueError('odd')\n"
        "try:\n    fails('Bearer kh_secret')\n"
        "except ValueError:\n    structlog.get_logger().exception('defect')\n"
    )
    done = subprocess.run([sys.executable, "-c", statement], capture_output=True, text=True, check=True)
    line = json.loads(done.stderr)
    assert "kh_secret" not in done.stderr
    assert line["exception"][0]["exc_value"] == "odd"
    assert [frame["name"] for frame in line["exception"][0]["frames"]] == ["<module>", "fails"]
