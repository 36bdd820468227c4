"""What `longhaul ready` and the doctor see on a port."""

from __future__ import annotations

import socket
from threading import Thread

import pytest

from app.local.errors import LocalError
from app.local.readiness import check_api
from config.settings import Settings


def test_another_program_on_the_port_is_one_line_and_no_traceback() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            with server.accept()[0] as client:
                client.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
                client.recv(1024)

        thread = Thread(target=greet)
        thread.start()
        with pytest.raises(LocalError, match="nothing answers HTTP on port"):
            check_api(Settings(host="127.0.0.1", port=server.getsockname()[1]))
        thread.join()
