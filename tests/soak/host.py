"""The server under test: its process, the memory cgroup around it, and what /proc says about it."""

import os
import re
import shutil
import signal
import subprocess
import threading
import time

from wire import Gone, ask

MARGIN = 256 << 20  # that a plan leaves free for requests, allocator and text (docs/serving-safety.md)
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def plan_of(binary, flags):
    """Bytes of host memory that `serve --dry-run` plans, without the margin, and the bytes of the mapped weights."""
    text = subprocess.run([binary, "serve", "--dry-run", *flags], capture_output=True, text=True, check=True).stdout

    def size(name):
        found = re.search(rf"^  {name} +([\d.]+) (\w+)", text, re.M)
        return int(float(found[1]) * UNITS[found[2]]) if found else None

    return size("on host") or size("total"), text


class Cgroup:
    """A memory cgroup inside this process's own, of version 1 or 2. `name` is None where none can be made, or
    where there is no limit (None)."""

    def __init__(self, limit):
        self.path, self.name, self.why = None, None, [] if limit else ["not wanted"]
        if limit is None:
            return
        for make in (self.version1, self.version2):
            try:
                make(limit)
                return
            except OSError as error:
                self.why.append(f"{make.__name__}: {error.strerror} ({error.filename})")
                self.remove()
        # Without rights for a cgroup, a service manager may still make one: see prefix().
        if shutil.which("systemd-run") and subprocess.run(
                ["systemd-run", "--scope", "--quiet", "-p", f"MemoryMax={limit}", "true"], capture_output=True,
                check=False).returncode == 0:
            self.name, self.limit = "systemd-run --scope", limit

    def own(self, controller):
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            for line in file:
                _, controllers, path = line.strip().split(":", 2)
                if controller in controllers.split(","):
                    return path
        raise FileNotFoundError(2, "no such hierarchy", controller or "cgroup2")

    def create(self, parent, file, limit):
        self.path = os.path.join(parent, f"infinigen-soak-{os.getpid()}")
        os.mkdir(self.path)
        with open(os.path.join(self.path, file), "w", encoding="utf-8") as out:
            out.write(str(limit))

    def version1(self, limit):
        self.create("/sys/fs/cgroup/memory" + self.own("memory"), "memory.limit_in_bytes", limit)
        self.name = "cgroup v1"

    def version2(self, limit):
        self.create("/sys/fs/cgroup" + self.own(""), "memory.max", limit)
        self.name = "cgroup v2"

    def prefix(self):
        return ["systemd-run", "--scope", "--quiet", "-p", f"MemoryMax={self.limit}", "-p", "MemorySwapMax=0"] if (
            self.name and not self.path) else []

    def enter(self):
        """Called in the child, before it becomes the server."""
        if self.path:
            with open(os.path.join(self.path, "cgroup.procs"), "w", encoding="utf-8") as out:
                out.write(str(os.getpid()))

    def kills(self):
        """Processes of the group that the kernel ended for want of memory."""
        for name in ("memory.oom_control", "memory.events"):
            try:
                with open(os.path.join(self.path or "/nothing", name), encoding="utf-8") as file:
                    return sum(int(line.split()[1]) for line in file if line.startswith("oom_kill "))
            except OSError:
                pass
        return 0

    def remove(self):
        if self.path and os.path.isdir(self.path):
            for _ in range(50):  # the kernel needs a moment after the last process
                try:
                    os.rmdir(self.path)
                    break
                except OSError:
                    time.sleep(0.1)
        self.path = None


class Host:
    def __init__(self, binary, flags, keys, folder, cgroup, preload=None):
        self.key = keys[0]
        key_file = os.path.join(folder, "keys")
        with open(key_file, "w", encoding="utf-8") as out:
            out.write("\n".join(keys) + "\n")
        self.log_path = os.path.join(folder, "serve.log")
        environment = {k: v for k, v in os.environ.items() if not k.startswith("INFINIGEN_")}
        if preload:
            environment["LD_PRELOAD"] = preload
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                [*cgroup.prefix(), binary, "serve", "--port", "0", "--api-key-file", key_file, *flags],
                stdout=subprocess.PIPE, stderr=log, env=environment, preexec_fn=cgroup.enter)
        line = self.process.stdout.readline().decode()
        found = re.match(r"listening on http://.*:(\d+)$", line)
        if not found:
            self.process.wait(10)
            raise RuntimeError(f"the server did not start: {line!r} {self.log_tail()}")
        self.port = int(found[1])
        self.highest = {"RssAnon": 0, "VmRSS": 0}
        self.sampling = threading.Event()
        self.sampler = threading.Thread(target=self.sample, daemon=True)

    def await_ready(self, seconds=300):
        deadline = time.monotonic() + seconds
        while ask(self.port, "GET", "/health").status != 200:
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise RuntimeError(f"not ready: {self.log_tail()}")
            time.sleep(0.05)
        self.sampler.start()

    def sample(self):
        while not self.sampling.wait(0.1):
            try:
                for name, value in self.memory().items():
                    self.highest[name] = max(self.highest[name], value)
            except (OSError, ValueError):
                return

    def memory(self):
        """Bytes: RssAnon is what the server allocated, VmRSS has mapped files too."""
        with open(f"/proc/{self.process.pid}/status", encoding="utf-8") as file:
            found = dict(line.split(":", 1) for line in file)
        if "RssAnon" not in found:
            raise ProcessLookupError(3, "the server has ended")
        return {name: int(found[name].split()[0]) << 10 for name in ("RssAnon", "VmRSS")}

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def threads(self):
        return len(os.listdir(f"/proc/{self.process.pid}/task"))

    def cpu_seconds(self):
        with open(f"/proc/{self.process.pid}/stat", encoding="utf-8") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def metrics(self):
        text = ask(self.port, "GET", "/metrics", key=self.key).body.decode()
        return {name.removeprefix("infinigen_"): float(value) for name, value in
                (line.rsplit(" ", 1) for line in text.splitlines() if line and line[0] != "#")}

    def alive(self):
        return self.process.poll() is None

    def log_tail(self, lines=8):
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            return "".join(file.readlines()[-lines:])

    def log_has(self, *words):
        """Lines of the log that hold one of the words."""
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            return [line.strip() for line in file if any(word in line for word in words)]

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)

    def wait(self, seconds):
        """The exit code, or None if it is still there after so long."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        self.sampling.set()
        return code

    def kill(self):
        if self.alive():
            self.process.kill()
            self.process.wait()
        self.sampling.set()


def unreachable(port):
    try:
        ask(port, "GET", "/health", timeout=5)
        return False
    except Gone:
        return True
