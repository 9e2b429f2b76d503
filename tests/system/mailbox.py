"""An SMTP server in a thread that keeps what it got and refuses whom it is told to (RFC 5321, what a client needs)."""
import email
import socketserver
import threading
from email import policy


class Mailbox:
    """The server; ``mails`` are (recipient, message) in the order of their arrival."""

    def __init__(self):
        self.mails, self.refused = [], set()
        mailbox = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self):
                self._say("220 mailbox")
                recipients = []
                while line := self.rfile.readline().decode().strip():
                    verb = line.split(maxsplit=1)[0].upper()
                    if verb == "RCPT":
                        recipients.append(line.partition("<")[2].partition(">")[0])
                        refused = recipients[-1] in mailbox.refused
                        self._say("550 nobody here" if refused else "250 ok")
                    elif verb == "DATA":
                        self._say("354 go on")
                        mailbox.mails += [(recipient, self._message()) for recipient in recipients]
                        recipients = []
                        self._say("250 taken")
                    else:
                        self._say("221 bye" if verb == "QUIT" else "250 ok")

            def _say(self, text):
                self.wfile.write(f"{text}\r\n".encode())

            def _message(self):
                lines = []
                while (line := self.rfile.readline()) not in (b".\r\n", b""):
                    lines.append(line.removeprefix(b"."))
                return email.message_from_bytes(b"".join(lines), policy=policy.default)

        self.server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()
