"""HTTP over a bare socket, as strict as a client can be: whatever breaks the framing of a reply raises Broken. The client of all
tests of the server: tests/server, tests/soak and tests/faults."""

import json
import re
import socket
import struct


class Broken(Exception):
    """The server sent something that is not a well-formed reply."""


class Gone(OSError):
    """The connection could not be made, or ended before the reply did. `timed_out`: nothing came for too long."""

    def __init__(self, text, cause=None):
        super().__init__(text)
        self.timed_out = isinstance(cause, TimeoutError)


class Headers(dict):
    """By name in small letters; asked for in any. None for those that are not there."""

    def __getitem__(self, name):
        return self.get(name.lower())

    def __contains__(self, name):
        return super().__contains__(name.lower())


class Reply:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise Broken(f"the body is not JSON: {self.body[:80]!r}") from error

    @property
    def error(self):
        """`error` of an error's body."""
        error = self.json.get("error") if isinstance(self.json, dict) else None
        if not isinstance(error, dict) or not isinstance(error.get("message"), str):
            raise Broken(f"status {self.status} without an error's body: {self.body[:80]!r}")
        return error

    def code(self):
        return self.error.get("code")


def request(method, path, body=None, key=None, headers=()):
    """The bytes of a request. `body`: bytes, text, or what becomes JSON; `headers`: lines, or a dictionary."""
    given = [f"{name}: {value}" for name, value in headers.items()] if isinstance(headers, dict) else list(headers)
    names = {line.split(":", 1)[0].lower() for line in given}
    lines = [f"{method} {path} HTTP/1.1", *([] if "host" in names else ["Host: localhost"]), *given]
    if key:
        lines.append(f"Authorization: Bearer {key}")
    data = b""
    if body is not None or method == "POST":
        body = b"" if body is None else body
        data = body if isinstance(body, bytes) else (body if isinstance(body, str) else json.dumps(body)).encode()
        lines += [] if "content-type" in names else ["Content-Type: application/json"]
        lines.append(f"Content-Length: {len(data)}")
    return "\r\n".join([*lines, "", ""]).encode() + data


class Wire:
    """One connection. `receive_bytes`: the size of the kernel's buffer, small for readers that are to be slow."""

    def __init__(self, port, timeout=120, receive_bytes=0):
        self.socket = socket.socket()
        self.buffer = b""
        try:
            if receive_bytes:
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
            self.socket.settimeout(timeout)
            self.socket.connect(("127.0.0.1", port))
        except OSError as error:
            self.socket.close()
            raise Gone(f"connect: {error}", error) from error

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.socket.close()

    def reset(self):
        """Closes as a process that died does: the server gets a reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def send(self, data):
        try:
            self.socket.sendall(data)
        except OSError as error:
            raise Gone(f"send: {error}", error) from error

    def more(self):
        try:
            data = self.socket.recv(65536)
        except OSError as error:
            raise Gone(f"receive: {error}", error) from error
        if not data:
            raise Gone("the connection ended")
        self.buffer += data

    def line(self):
        while (end := self.buffer.find(b"\r\n")) < 0:
            if len(self.buffer) > 65536:
                raise Broken("a line of over 64 KiB")
            self.more()
        line, self.buffer = self.buffer[:end], self.buffer[end + 2:]
        return line

    def take(self, count):
        while len(self.buffer) < count:
            self.more()
        data, self.buffer = self.buffer[:count], self.buffer[count:]
        return data

    def head(self):
        first = self.line()
        if not re.fullmatch(rb"HTTP/1\.1 [1-5]\d\d [ -~]*", first):
            raise Broken(f"not a status line: {first[:80]!r}")
        headers = Headers()
        while line := self.line():
            name, colon, value = line.partition(b":")
            if not colon or not re.fullmatch(rb"[A-Za-z-]+", name):
                raise Broken(f"not a header line: {line[:80]!r}")
            name = name.decode().lower()
            if name in headers:
                raise Broken(f"two header lines {name}")
            headers[name] = value.strip().decode("latin-1")
        return int(first.split()[1]), headers

    def chunks(self):
        """The data of a chunked reply, chunk by chunk."""
        while True:
            size = self.line()
            if not re.fullmatch(rb"[0-9a-fA-F]{1,8}", size):
                raise Broken(f"not the size of a chunk: {size[:40]!r}")
            data = self.take(int(size, 16))
            if self.take(2) != b"\r\n":
                raise Broken("a chunk without its end")
            if not data:
                return
            yield data

    def body(self, headers):
        if headers.get("transfer-encoding") == "chunked":
            return b"".join(self.chunks())
        if not re.fullmatch(r"\d+", headers.get("content-length", "")):
            raise Broken(f"a reply of unknown length: {headers}")
        return self.take(int(headers["content-length"]))

    def reply(self, to_head=False):
        """The whole reply; `to_head`: to a HEAD request, so without a body."""
        status, headers = self.head()
        return Reply(status, headers, b"" if status == 204 or to_head else self.body(headers))

    def events(self):
        """The events of a stream whose head has been read, as they come."""
        return events_of(self.chunks())


def events_of(parts):
    """The events in parts of a stream's body: each the text after `data: `; comments are left out."""
    rest = b""
    for data in parts:
        rest += data
        while (end := rest.find(b"\n\n")) >= 0:
            event, rest = rest[:end], rest[end + 2:]
            if event.startswith(b": "):
                continue
            if not event.startswith(b"data: ") or b"\n" in event:
                raise Broken(f"not an event: {event[:80]!r}")
            yield event[6:]
    if rest:
        raise Broken(f"a stream ends inside an event: {rest[:80]!r}")


def ask(port, method, path, body=None, key=None, timeout=120, headers=()):
    with Wire(port, timeout) as wire:
        wire.send(request(method, path, body, key, headers))
        return wire.reply(method == "HEAD")
