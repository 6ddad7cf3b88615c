"""A server that speaks the routes of a model hub, for tests: listing, files, redirects to a second host, ranges, and
faults on demand. Standard library only.

    hub = Hub()                          # two servers on free ports: the hub, and the host that keeps large files
    hub.repositories["org/name"] = {"config.json": b"…"}
    hub.faults.append(Fault("resolve", cut=1000))      # for the next request whose path has this text
    … HF_ENDPOINT=hub.url …
    hub.requests                         # what arrived: (host, path, headers)
"""

import hashlib
import http.server
import json
import re
import ssl
import threading
import urllib.parse

LARGE = 4096  # bytes from which a file is "large": SHA-256 instead of git's SHA-1, and kept by the second host


def commit_of(files):
    return hashlib.sha1(repr(sorted((k, hashlib.sha1(v).hexdigest()) for k, v in files.items())).encode()).hexdigest()


def entry(path, data):
    """A file in a listing."""
    made = {"rfilename": path, "size": len(data), "blobId": hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()}
    if len(data) >= LARGE:
        made["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
    return made


class Fault:
    """What goes wrong with the next `times` requests whose host and path contain `text`."""

    def __init__(self, text, times=1, status=None, headers=None, body=None, cut=None, stall=None, redirect=None,
                 ignore_range=False, chunked=None, drip=False):
        self.text, self.times, self.status, self.headers, self.body = text, times, status, headers or {}, body
        self.cut = cut  # bytes of the body after which the connection ends
        self.stall = stall  # bytes of the body after which nothing comes until the event `released` of the hub
        self.drip = drip  # with stall: bytes come one by one instead of none
        self.redirect, self.ignore_range = redirect, ignore_range
        self.chunked = chunked  # bytes that follow the body, which is sent without its length


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        hub, host = self.server.hub, self.server.host
        self.close_connection = True
        with hub.lock:
            hub.requests.append((host, self.path, dict(self.headers)))
            fault = next((f for f in hub.faults if f.times > 0 and f.text in host + self.path), None)
            if fault:
                fault.times -= 1
        fault = fault or Fault("")
        try:
            self.answer(hub, host, fault)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def answer(self, hub, host, fault):
        if fault.redirect:
            return self.reply(fault.status or 302, b"", {"Location": fault.redirect}, fault)
        if fault.status:
            return self.reply(fault.status, fault.body or b"no", fault.headers, fault)
        path = urllib.parse.unquote(self.path.partition("?")[0])
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/(.+)", path):
            return self.listing(hub, *found.groups(), fault)
        if found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            return self.file(hub, *found.groups(), fault)
        if host == "cdn" and (data := hub.large.get(path)) is not None:
            return self.content(data, {}, fault)
        self.reply(404, b"{}", {"X-Error-Code": "EntryNotFound"}, fault)

    def listing(self, hub, repository, revision, fault):
        files = hub.repositories.get(repository)
        if files is None:
            return self.reply(401, b"{}", {"X-Error-Code": "RepoNotFound"}, fault)
        commit = commit_of(files)
        if revision not in ("main", commit):
            return self.reply(404, b"{}", {"X-Error-Code": "RevisionNotFound"}, fault)
        made = {"id": repository, "sha": commit, "private": False, "gated": False, "cardData": {"tags": [["a"], {}]},
                "siblings": [entry(*item) for item in files.items()], "spaces": []}
        made = hub.change_listing(made) if hub.change_listing else made
        body = made if isinstance(made, bytes) else json.dumps(made).encode()
        self.content(body, {"Content-Type": "application/json"}, fault)

    def file(self, hub, repository, revision, path, fault):
        files = hub.repositories.get(repository, {})
        if path not in files or revision not in ("main", commit_of(files)):
            return self.reply(404, b"{}", {"X-Error-Code": "EntryNotFound"}, fault)
        data = files[path]
        if len(data) < LARGE:
            return self.content(data, {}, fault)
        digest = hashlib.sha256(data).hexdigest()
        hub.large["/" + digest] = hub.corrupt.get(path, data)
        head = {"Location": f"{hub.cdn_url}/{digest}?signature=a%2Fb", "X-Linked-Size": str(len(data)),
                "X-Linked-Etag": f'"{digest}"', **fault.headers}
        self.reply(302, b"Found", head, fault)

    def content(self, data, headers, fault):
        status, total, wanted = 200, len(data), re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if wanted and not fault.ignore_range:
            begin = int(wanted[1])
            status, data = 206, data[begin:]
            headers = {**headers, "Content-Range": f"bytes {begin}-{total - 1}/{total}"}
        self.reply(status, data, {**headers, **fault.headers}, fault)

    def reply(self, status, body, headers, fault):
        self.send_response(status)
        if fault.chunked is not None:
            headers = {**headers, "Transfer-Encoding": "chunked"}
            body = body + fault.chunked
            body = b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n"
        for name, value in {"Content-Length": str(len(body)), "Connection": "close", **headers}.items():
            if not (name == "Content-Length" and fault.chunked is not None):
                self.send_header(name, value)
        self.end_headers()
        end = min(value for value in (fault.cut, fault.stall, len(body)) if value is not None)
        self.wfile.write(body[:end])
        self.wfile.flush()
        if fault.stall is not None and not fault.drip:
            self.server.hub.released.wait(60)
        while fault.drip and end < len(body) and not self.server.hub.released.wait(0.002):
            self.wfile.write(body[end:end + 1])
            end += 1


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        pass  # a client that refuses the certificate


class Hub:
    def __init__(self, certificate=None):
        self.repositories, self.faults, self.requests = {}, [], []
        self.large = {}  # contents by path, of the second host
        self.corrupt = {}  # contents that replace those of large files, by path in the repository
        self.change_listing = None  # what a listing becomes: an object, or bytes
        self.lock, self.released = threading.Lock(), threading.Event()
        self.servers = []
        scheme = "https" if certificate else "http"
        self.url = f"{scheme}://127.0.0.1:{self.start('hub', certificate)}"
        self.cdn_url = f"{scheme}://127.0.0.1:{self.start('cdn', certificate)}"

    def start(self, host, certificate):
        server = Server(("127.0.0.1", 0), Handler)
        server.hub, server.host = self, host
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            # The handshake belongs to the connection's own thread: one that fails must not end the server.
            server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        self.servers.append(server)
        return server.server_address[1]

    def paths(self, text=""):
        with self.lock:
            return [path for _, path, _ in self.requests if text in path]

    def close(self):
        self.released.set()
        for server in self.servers:
            server.shutdown()
            server.server_close()
