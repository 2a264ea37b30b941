"""A chat-completions server in this process, whose answers a test says."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MODELS = {"data": [{"id": "the-model"}]}


class Server:
    """reply(number of the request, body) -> (status, headers, text or bytes).

    requests: (time, body, headers) of each. models: what the list of models is, or (status, headers, text).
    """

    def __init__(self, reply, models=MODELS):
        self.requests: list[tuple[float, dict, dict]] = []
        self.listed: list[dict] = []  # the headers of requests for the list of models
        self.lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                server.listed.append(dict(self.headers))
                self.answer(*(models if isinstance(models, tuple) else (200, {}, json.dumps(models))))

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with server.lock:
                    server.requests.append((time.monotonic(), body, dict(self.headers)))
                    number = len(server.requests) - 1
                self.answer(*reply(number, body))

            def answer(self, status, headers, text):
                data = text.encode() if isinstance(text, str) else text
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(int(headers.get("X-Claim", len(data)))))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"

    def __enter__(self):
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.http.shutdown()
        self.http.server_close()


def says(content: object, finish_reason: str = "stop", **message) -> str:
    """The body of an answer with this content."""
    choice = {"message": {"role": "assistant", "content": content} | message, "finish_reason": finish_reason}
    return json.dumps({"choices": [choice], "usage": {"prompt_tokens": 2, "completion_tokens": 5}})
