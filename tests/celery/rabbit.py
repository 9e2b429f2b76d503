"""A RabbitMQ of its own for a test, from Debian's package."""
import os
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

from chrono_beat.testing.patience import eventually

PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
START_SECONDS = 60


def _free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Rabbit:
    """The server; ``url`` is for Celery."""

    def __init__(self):
        self._home = tempfile.TemporaryDirectory(prefix="rabbit-")
        self.port, self._epmd = _free_port(), _free_port()
        self.url = f"amqp://guest:guest@127.0.0.1:{self.port}//"
        plugins = Path(self._home.name) / "enabled_plugins"
        plugins.write_text("[].\n")
        self._environment = {
            **os.environ, "HOME": self._home.name, "RABBITMQ_NODENAME": f"test{self.port}@localhost",
            "RABBITMQ_NODE_PORT": str(self.port), "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_DIST_PORT": str(_free_port()),
            "RABBITMQ_MNESIA_BASE": self._home.name, "RABBITMQ_LOG_BASE": self._home.name, "ERL_EPMD_PORT": str(self._epmd),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(plugins), "ERL_EPMD_ADDRESS": "127.0.0.1", "ERL_EPMD_RELAXED_COMMAND_CHECK": "1",
        }
        self._process = None
        self.start()

    def start(self):
        """Start it, on the same port, with what it had kept."""
        self._process = subprocess.Popen([PROGRAM], env=self._environment, stdout=subprocess.DEVNULL,
                                         stderr=subprocess.DEVNULL, start_new_session=True)
        eventually(self._answers, START_SECONDS, what="RabbitMQ")

    def _answers(self):
        assert self._process.poll() is None, "RabbitMQ ended"
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                connection.settimeout(2)
                connection.sendall(b"AMQP\x00\x00\x09\x01")
                return bool(connection.recv(8))
        except OSError:
            return False

    def kill(self):
        """End it as a crash does."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self):
        self.kill()
        subprocess.run(["epmd", "-port", str(self._epmd), "-kill"], env=self._environment, check=False, capture_output=True)
        self._home.cleanup()
