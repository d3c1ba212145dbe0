"""Stubs of the vendors' APIs: one HTTP server that knows a shape of each, a gRPC server, and moto with all signatures checked.

Each answers as the vendor does, with links and addresses of its own: those that it reads in `Host`.
"""

import base64
import collections
import concurrent.futures
import http.server
import json
import re
import socket
import threading
import time
import urllib.parse

import google_crc32c
import grpc

PAGES = 5
UPLOADED = {}
# The seconds that a slow call takes, and how many there were, by the name in their paths.
SLOW = 0.8
WORKED = collections.Counter()

# The answer to a method and a path, for calls whose answer is a fixed document. Each client finds "ok" in it.
ANSWERS = [
    ("POST /v1/chat/completions", {
        "id": "1", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "ok"}}],
    }),
    ("POST /v1/messages", {
        "id": "1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn",
        "content": [{"type": "text", "text": "ok"}], "usage": {"input_tokens": 1, "output_tokens": 1},
    }),
    ("POST /v1/charges", {"id": "ok", "object": "charge"}),
    ("POST /api/chat.postMessage", {"ok": True, "ts": "ok"}),
    ("GET /v1/users/.*", {"object": "user", "id": "ok"}),
    ("GET /crm/.*", {
        "id": "ok", "properties": {}, "archived": False,
        "createdAt": "2026-01-01T00:00:00Z", "updatedAt": "2026-01-01T00:00:00Z",
    }),
    ("POST /2010-04-01/Accounts/.*", {"sid": "ok", "status": "queued"}),
    ("GET /index/_doc/1", {"_index": "index", "_id": "ok", "found": True, "_source": {}}),
    ("POST /v1(beta)?/models/.*", {"candidates": [{"content": {"role": "model", "parts": [{"text": "ok"}]}}]}),
    ("GET /storage/v1/b/.*", {"kind": "storage#bucket", "id": "ok", "name": "ok"}),
    ("GET /admin/api/[^/]+/shop.json", {"shop": {"id": 1, "name": "ok"}}),
    ("GET /youtube/v3/videos", {"items": [{"id": "ok"}]}),
    ("GET /text", "ok"),
]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def answer(self):
        self.content = self.rfile.read(int(self.headers.get("content-length") or 0))
        self.url = urllib.parse.urlsplit(self.path)
        self.query = dict(urllib.parse.parse_qsl(self.url.query))
        path = self.url.path
        if path.startswith("/worked/"):
            return self.reply(200, str(WORKED[path.removeprefix("/worked/")]))
        if path.startswith("/slow/"):
            _, _, name, path = path.split("/", 3)
            path = f"/{path}"
            WORKED[name] += 1
            time.sleep(SLOW)
        held = self.headers["authorization"] or self.headers["x-shopify-access-token"]
        if path.startswith(("/repositories/", "/upload/", "/resumable/")) or path.endswith("/products.json"):
            if held != self.server.token:
                return self.reply(401, {"message": f"the stub wants weir's credential, not {held}"})
        if path.startswith("/repos/"):
            return self.repository() if path.count("/") == 3 else self.pages("/repositories/7/issues", list)
        if path.startswith("/repositories/7/issues"):
            return self.pages(path, list)
        if path == "/repositories/7":
            return self.repository()
        if path.endswith("/products.json"):
            return self.pages(path, lambda items: {"products": items})
        if path.startswith(("/upload/", "/resumable/")):
            return self.upload()
        for request, document in ANSWERS:
            if re.fullmatch(request, f"{self.command} {path}"):
                return self.reply(200, document)
        self.reply(404, {"message": f"the stub knows no {self.command} {path}"})

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer

    def own(self, path):
        """Returns an address as the vendor has it. Under its own name the vendor speaks TLS."""
        host = self.headers["host"]
        scheme = "http" if host.startswith("127.") else "https"
        return f"{scheme}://{host}{path}"

    def repository(self):
        if self.url.path.endswith("/moved"):
            return self.reply(301, {"message": "Moved Permanently"}, location=self.own("/repositories/7"))
        self.reply(200, {"id": 7, "name": "ok", "full_name": "o/ok", "url": self.own(self.url.path)})

    def pages(self, path, shape):
        """A page of a list, with a link to the next one, as GitHub and Shopify have it."""
        page = int(self.query.get("page") or self.query.get("page_info") or 1)
        name = "page_info" if "admin" in path else "page"
        links = {} if page == PAGES else {"link": f'<{self.own(path)}?{name}={page + 1}&limit=1>; rel="next"'}
        self.reply(200, shape([{"id": page, "number": page, "title": str(page)}]), **links)

    def upload(self):
        """A resumable upload, as Google Cloud Storage has it."""
        name = self.query.get("name") or self.query.get("upload_id")
        if self.command == "POST":
            name = name or json.loads(self.content)["name"]
            UPLOADED[name] = b""
            place = f"/resumable/storage/v1/b/bucket/o?uploadType=resumable&upload_id={name}"
            return self.reply(200, "", location=self.own(place))
        UPLOADED[name] += self.content
        size = len(UPLOADED[name])
        if not self.headers["content-range"].endswith(f"/{size}"):
            return self.reply(308, "", range=f"bytes=0-{size - 1}")
        checksum = base64.b64encode(google_crc32c.Checksum(UPLOADED[name]).digest()).decode()
        self.reply(200, {"name": name, "bucket": "bucket", "size": str(size), "crc32c": checksum})

    def reply(self, status, document, **headers):
        body = document if isinstance(document, str) else json.dumps(document)
        kind = "application/vnd.elasticsearch+json;compatible-with=9" if "_doc" in self.path else "application/json"
        if document == "ok":
            kind = "text/plain"
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.send_header("x-elastic-product", "Elasticsearch")
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_):
        pass


def start_http(token):
    """Starts the stub of the HTTP APIs, which wants a credential for what links lead to; returns its authority."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.token = token
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"127.0.0.1:{server.server_port}"


class Down(http.server.BaseHTTPRequestHandler):
    """An API that is down: it answers 503, and counts by the route that weir names."""

    protocol_version = "HTTP/1.1"

    def answer(self):
        self.rfile.read(int(self.headers.get("content-length") or 0))
        WORKED[self.headers["x-route"]] += 1
        self.send_response(503)
        self.send_header("content-length", "0")
        self.end_headers()

    do_GET = do_POST = do_PUT = do_HEAD = answer

    def log_message(self, *_):
        pass


def start_down():
    """Starts an API that is down; returns its authority."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Down)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"127.0.0.1:{server.server_port}"


class Echo(grpc.GenericRpcHandler):
    def service(self, _details):
        return grpc.unary_unary_rpc_method_handler(lambda request, _context: request)


def start_grpc():
    """Starts a gRPC server that answers each call with what it was sent; returns the server and its authority."""
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(4), handlers=[Echo()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, f"127.0.0.1:{port}"


def start_silent():
    """Starts a server that accepts connections and never answers; returns the socket."""
    listener = socket.create_server(("127.0.0.1", 0))
    kept = []

    def accept():
        while True:
            try:
                kept.append(listener.accept()[0])
            except OSError:
                return

    threading.Thread(target=accept, daemon=True).start()
    return listener
