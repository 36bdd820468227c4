"""Several API processes behind one port: `python -m app.api.connection.processes ARGUMENTS`, those of uvicorn.

uvicorn's parent process keeps the listening socket open until its last child has ended, so clients would connect to a
server that drains, and wait. Here it closes the socket first, and passes a second signal on.
"""

from __future__ import annotations

import os
import signal
from importlib import import_module

from uvicorn.supervisors import Multiprocess

JOIN_SECONDS = 0.2


class Processes(Multiprocess):
    """uvicorn's processes, which stop listening together."""

    def terminate_all(self) -> None:
        for listening in self.sockets:
            listening.close()
        super().terminate_all()

    def join_all(self) -> None:
        for child in self.processes:
            while child.process.is_alive():
                child.process.join(JOIN_SECONDS)
                self._pass_on()

    def _pass_on(self) -> None:
        while self.signal_queue:
            self.signal_queue.pop()
            for child in self.processes:
                if child.pid is not None and child.process.is_alive():
                    os.kill(child.pid, signal.SIGTERM)


if __name__ == "__main__":
    program = import_module("uvicorn.main")  # The attribute of that name is its command.
    program.Multiprocess = Processes  # type: ignore[attr-defined]
    program.main()
