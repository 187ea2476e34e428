"""``python -m verification.hostile.small_disk``: a PostgreSQL whose disk can be filled, until Ctrl-C.

A file system in memory, so it needs root. If the server exits because its disk is full, it is restarted, as a
service manager would. Prints its URL, for `prove --hostile --attacks n36 --database URL`.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from verification.proving.ports import free_ports
from verification.proving.postgresql import OwnPostgresql
from verification.proving.system import CannotProve

_POLL_SECONDS = 0.5


def main() -> int:
    arguments = argparse.ArgumentParser(prog="python -m verification.hostile.small_disk", description=__doc__)
    arguments.add_argument(
        "--megabytes", type=int, default=200, help="size of the disk (default %(default)s)"
    )
    options = arguments.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    mount = tempfile.mkdtemp(prefix="small-disk-")
    log = Path(f"{mount}.log")
    size = f"size={options.megabytes}m,mode=755"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", mount], check=True)
    tempfile.tempdir = mount
    postgresql = OwnPostgresql(log, next(free_ports()))
    try:
        postgresql.start()
        sys.stdout.write(f"{postgresql.url}\n")
        sys.stdout.flush()
        while True:
            time.sleep(_POLL_SECONDS)
            if not postgresql.is_running:
                with suppress(CannotProve):  # its disk is still full
                    postgresql.start()
    except KeyboardInterrupt:
        return 0
    finally:
        postgresql.stop()
        subprocess.run(["umount", mount], check=True)
        Path(mount).rmdir()
        log.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
