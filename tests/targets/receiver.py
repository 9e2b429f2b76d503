"""An HTTP server in a thread that keeps what it got and answers as it is told."""
import contextlib
import textwrap
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def documented(*pages, part="receiver"):
    """Run a part of pages of the documentation as it stands there; returns the names that it defines."""
    names = {}
    for page in pages:
        lines = (DOCS / f"{page}.rst").read_text().partition(f"\n.. {part}\n\n::\n")[2].splitlines()
        end = next(number for number, line in enumerate(lines) if line and not line.startswith(" "))
        exec(textwrap.dedent("\n".join(lines[:end])), names)
    return names


class Receiver:
    """The server; *answer* is called with the handler and writes the answer."""

    def __init__(self, answer=None):
        self.requests = []
        self.answer = answer or (lambda handler: reply(handler, 204))
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.requests.append((self.path, dict(self.headers), body))
                with contextlib.suppress(OSError):         # the caller has gone
                    receiver.answer(self)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        self.released = threading.Event()                  # for answers that wait until the test has seen enough
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def url(self, path="/hook", host="127.0.0.1"):
        return f"http://{host}:{self.port}{path}"

    def close(self):
        self.released.set()
        self.server.shutdown()
        self.server.server_close()


def reply(handler, status, body=b"", **headers):
    """Answer with a status, a body and headers (with _ for -)."""
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)
