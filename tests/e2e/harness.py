"""What the end-to-end tests share: a real llama-server with a tiny random model, tokid in front of
it, and HTTP.

Only the standard library. The parts come from the environment (tests/e2e/CMakeLists.txt sets them):

    TOKI_TOKID     the built tokid
    TOKI_MODEL     a model for llama-server, made by make_gguf
    TOKI_PARTS     where tests/run.sh puts llama-server and the openai clients
    LLAMA_SERVER   a llama-server of your own, instead of the one there

A test file whose parts are missing exits with 77 and a line `SKIPPED: why`, which ctest counts as
skipped. Nothing waits for a fixed time: every wait has a condition and a deadline.
"""

import ctypes
import http.client
import importlib.util
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.parse

START_LIMIT_S = 60  # generous: the machine may be busy
ANSWER_LIMIT_S = 120

WORDS = (
    "the cat could explain how every student read a story about the river and the old library "
    "before morning when someone asked which number was correct because another answer looked "
    "different from that picture and nothing in the garden would remember summer or winter until "
    "people discuss what they understand of code"
).split()


def skip(reason):
    print(f"SKIPPED: {reason}", flush=True)
    sys.exit(77)


def parts():
    return os.environ.get("TOKI_PARTS", "")


def require_client(package):
    """Goes on with the Python that has `package`, which tests/run.sh fetches; ends the test file as
    skipped when none has.
    """
    if importlib.util.find_spec(package):
        return
    client_python = os.path.join(parts(), "python", "bin", "python3")
    if os.path.exists(client_python) and os.environ.get("TOKI_REEXECUTED") != "1":
        os.environ["TOKI_REEXECUTED"] = "1"
        os.execv(client_python, [client_python, *sys.argv])
    skip(f"no {package} package for Python (tests/run.sh installs it when PyPI can be reached)")


def find_llama_server():
    for path in (
        os.environ.get("LLAMA_SERVER"),
        shutil.which("llama-server"),
        os.path.join(parts(), "llama-server", "llama-server"),
    ):
        if path and os.access(path, os.X_OK):
            return path
    return None


def require_parts():
    """Ends the test file as skipped when it cannot run here."""
    if not find_llama_server():
        skip("no llama-server (tests/support/get-llama-server.sh brings one)")
    for name in ("TOKI_TOKID", "TOKI_MODEL"):
        if not os.path.exists(os.environ.get(name, "")):
            skip(f"{name} names no file: {os.environ.get(name, '')!r}")


def words(count, seed):
    """`count` words that follow from `seed`, the same on every machine."""
    rng = random.Random(f"toki {seed}")
    return " ".join(rng.choice(WORDS) for _ in range(count))


def wait_until(condition, what, limit_s=START_LIMIT_S, step_s=0.01):
    """Polls until `condition()` is true and returns its value; else fails with `what`."""
    end = time.monotonic() + limit_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {limit_s} s: {what}")
        time.sleep(step_s)


# ---- HTTP


class Response:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def json(self):
        try:
            return json.loads(self.body)
        except ValueError:
            raise AssertionError(f"status {self.status}, not JSON: {self.body[:400]!r}") from None

    def ok(self):
        """The JSON of a 200; anything else fails with what came instead."""
        if self.status != 200:
            raise AssertionError(f"status {self.status}: {self.body[:600]!r}")
        return self.json()


def _connect(url, limit_s):
    parsed = urllib.parse.urlsplit(url)
    target = (parsed.path or "/") + (f"?{parsed.query}" if parsed.query else "")
    return http.client.HTTPConnection(parsed.hostname, parsed.port, timeout=limit_s), target


def call(method, url, body=None, headers=None, limit_s=ANSWER_LIMIT_S):
    connection, path = _connect(url, limit_s)
    try:
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        connection.request(
            method, path, data, {"Content-Type": "application/json", **(headers or {})}
        )
        answer = connection.getresponse()
        return Response(
            answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
        )
    finally:
        connection.close()


def get(url, **more):
    return call("GET", url, **more)


def post(url, body, **more):
    return call("POST", url, body, **more)


class Stream:
    """An SSE answer read as it comes. `events` yields the data of each event, comments left out."""

    def __init__(self, url, body, limit_s=ANSWER_LIMIT_S, headers=None):
        self.connection, path = _connect(url, limit_s)
        self.connection.request(
            "POST",
            path,
            json.dumps(body).encode(),
            {"Content-Type": "application/json", **(headers or {})},
        )
        self.answer = self.connection.getresponse()
        self.status = self.answer.status
        self.headers = {k.lower(): v for k, v in self.answer.getheaders()}
        self.comments = 0

    def lines(self):
        rest = b""
        while True:
            # Not readline(): it hides that a chunked body was cut off.
            piece = self.answer.read1(65536)
            if not piece:
                break
            *whole, rest = (rest + piece).split(b"\n")
            yield from whole

    def events(self):
        data = []
        for line in self.lines():
            line = line.rstrip(b"\r")
            if line.startswith(b":"):
                self.comments += 1
            elif line.startswith(b"data:"):
                data.append(line[5:].lstrip())
            elif not line and data:
                yield b"\n".join(data).decode()
                data = []

    def close(self):
        # Shuts the socket down at once: close() alone leaves it open while the answer object holds
        # it.
        if self.connection.sock is not None:
            self.connection.sock.shutdown(socket.SHUT_RDWR)
        self.answer.close()
        self.connection.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self.close()
        except OSError:
            pass


def stream_text(url, body, **more):
    """Runs a stream to its end: (text, headers, the last timings, all events)."""
    text, timings, events = "", None, []
    with Stream(url, {**body, "stream": True}, **more) as stream:
        if stream.status != 200:
            raise AssertionError(f"status {stream.status}: {stream.answer.read()[:600]!r}")
        for data in stream.events():
            events.append(data)
            if data == "[DONE]":
                continue
            event = json.loads(data)
            if "error" in event:
                raise AssertionError(f"error in the stream: {data}")
            timings = event.get("timings") or timings
            text += event.get("content") or ""
            for choice in event.get("choices") or []:
                text += choice.get("text") or (choice.get("delta") or {}).get("content") or ""
        return text, stream.headers, timings, events


# ---- processes


def _die_with_parent():
    # A test that ctest kills must leave no server behind.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Process:
    """A child with its output in a file, ended for certain."""

    def __init__(self, command, folder, name, environment=None):
        self.name, self.command = name, command
        self.log_path = os.path.join(folder, f"{name}.log")
        self.out_path = os.path.join(folder, f"{name}.out")
        self.log, self.out = open(self.log_path, "ab"), open(self.out_path, "ab")
        self.child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self.out,
            stderr=self.log,
            env={**os.environ, **(environment or {})},
            preexec_fn=_die_with_parent,
        )

    def running(self):
        return self.child.poll() is None

    def kill(self):
        if self.running():
            self.child.kill()
        self.child.wait()

    def stop(self, limit_s=30):
        """SIGTERM, then the exit status; fails (after killing it) when it does not end."""
        if self.running():
            self.child.terminate()
        try:
            return self.child.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.name} did not end within {limit_s} s of SIGTERM") from None

    def close(self):
        self.kill()
        self.log.close()
        self.out.close()

    def read_log(self):
        with open(self.log_path, errors="replace") as file:
            return file.read()

    def read_out(self):
        with open(self.out_path, errors="replace") as file:
            return file.read()

    def tail(self, lines=25):
        return "\n".join(self.read_log().splitlines()[-lines:])

    def wait_for(self, condition, what, limit_s=START_LIMIT_S):
        def check():
            value = condition()
            if not value and not self.running():
                raise AssertionError(
                    f"{self.name} ended with {self.child.returncode} before: {what}"
                )
            return value

        try:
            return wait_until(check, what, limit_s)
        except AssertionError as error:
            raise AssertionError(
                f"{error}\n--- last lines of {self.name}:\n{self.tail()}"
            ) from None


class LlamaServer:
    """llama-server with the tiny model. `slots=None` starts it with its own defaults."""

    def __init__(
        self, folder, slots=4, context=4096, name="llama-server", model=None, extra=()
    ):
        self.folder, self.name, self.slots_wanted = folder, name, slots
        self.slot_folder = os.path.join(folder, f"{name}-slots")
        os.makedirs(self.slot_folder, exist_ok=True)
        # One thread is plenty for this model, and two that wait for each other crawl on a busy
        # machine.
        model = model or os.environ["TOKI_MODEL"]
        self.arguments = ["-m", model, "--host", "127.0.0.1", "-t", "1"]
        if slots is not None:
            self.arguments += [
                "-np",
                str(slots),
                "-c",
                str(slots * context),
                "--slot-save-path",
                self.slot_folder,
                "--cache-ram",
                "0",
                "--metrics",
            ]
        self.arguments += list(extra)
        self.port = 0
        self.process = None
        self.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def start(self):
        """Starts it on a free port, or after a stop on the port it had."""
        if self.process:
            self.process.close()
        self.process = Process(
            [find_llama_server(), *self.arguments, "--port", str(self.port)], self.folder, self.name
        )
        if self.port == 0:
            found = self.process.wait_for(
                lambda: re.search(
                    r"listening on http://127\.0\.0\.1:(\d+)", self.process.read_log()
                ),
                "llama-server listens",
            )
            self.port = int(found[1])
        self.process.wait_for(self.healthy, "llama-server is healthy")

    def healthy(self):
        try:
            return get(self.url + "/health", limit_s=5).status == 200
        except OSError:
            return False

    def slots(self):
        return get(self.url + "/slots").ok()

    def idle(self):
        return not any(slot["is_processing"] for slot in self.slots())

    def wait_idle(self, limit_s):
        wait_until(self.idle, "every slot of llama-server is idle", limit_s)

    def wait_ended(self, task, limit_s):
        """Waits until a task has ended, for whatever reason: how many tokens its slot then holds.

        From the log, not from /slots: the server notices that the client of an unstreamed request
        has left only after a second in which it had nothing else to say, and an answer to GET
        /slots counts as something.
        """
        pattern = rf"task {task} \| stop processing: n_tokens = (\d+)"
        found = self.process.wait_for(
            lambda: re.search(pattern, self.process.read_log()), f"task {task} has ended", limit_s
        )
        return int(found[1])

    def kill(self):
        self.process.kill()

    def close(self):
        self.process.close()


class Tokid:
    """tokid on a free port. With `command` it starts that llama-server itself (`tokid ... --
    COMMAND`).
    """

    def __init__(
        self,
        folder,
        backend=None,
        options=(),
        command=None,
        name="tokid",
        ready=True,
        data_dir=None,
        listen="127.0.0.1:0",
    ):
        self.data_dir = data_dir or os.path.join(folder, f"{name}-data")
        arguments = [
            os.environ["TOKI_TOKID"],
            "--listen",
            listen,
            "--data-dir",
            self.data_dir,
        ]
        arguments += ["--backend", backend] if backend else []
        # Where disk is not what a test is about, nothing is saved.
        arguments += [] if "--remote-states" in options else ["--remote-states", "0"]
        arguments += list(options)
        arguments += ["--", *command] if command else []
        self.process = Process(arguments, folder, name)
        found = self.process.wait_for(
            lambda: re.search(r"tokid listening on (http://\S+)", self.process.read_out()),
            "tokid listens",
        )
        self.url = found[1]
        if ready:
            self.wait_ready()

    def wait_ready(self):
        def ready():
            try:
                return get(self.url + "/toki/health", limit_s=5).status == 200
            except OSError:
                return False

        self.process.wait_for(ready, "/toki/health answers 200")

    def stats(self):
        return get(self.url + "/toki/stats").ok()

    def stats_when(self, condition, what, limit_s=10):
        """The statistics once `condition` holds: the last request may be counted just after its
        answer.
        """
        last = {}

        def check():
            last.update(self.stats())
            return condition(last)

        try:
            wait_until(check, what, limit_s)
        except AssertionError as error:
            raise AssertionError(f"{error}; statistics: {last}") from None
        return last

    def settled_stats(self):
        """The statistics when no request is on its way and every finished one is counted."""
        return self.stats_when(
            lambda s: s["slots_busy"] == 0
            and s["queue_length"] == 0
            and s["requests_total"]
            == s["requests_completed"] + s["requests_failed"] + s["requests_cancelled"],
            "tokid is at rest",
        )

    def slots(self):
        return get(self.url + "/toki/slots").ok()["slots"]

    def stop(self):
        return self.process.stop()

    def close(self):
        self.process.close()


# ---- tests


class TestCase(unittest.TestCase):
    """A test with a folder of its own that is deleted afterwards, and with whatever it started
    ended.
    """

    longMessage = True
    maxDiff = 2000

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp(prefix="toki-e2e-")
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)

    @classmethod
    def start_llama(cls, **more):
        server = LlamaServer(cls.folder, **more)
        cls.addClassCleanup(server.close)
        return server

    @classmethod
    def start_tokid(cls, **more):
        tokid = Tokid(cls.folder, **more)
        cls.addClassCleanup(tokid.close)
        return tokid

    def run(self, result=None):
        # A failure is worth little without the servers' own words.
        before = len(result.failures) + len(result.errors)
        super().run(result)
        if len(result.failures) + len(result.errors) > before:
            for name in sorted(os.listdir(self.folder)):
                if name.endswith(".log"):
                    with open(os.path.join(self.folder, name), errors="replace") as file:
                        tail = file.read().splitlines()[-20:]
                    if tail:
                        sys.stderr.write("\n".join([f"--- last lines of {name} ---", *tail, ""]))
        return result


class StandardCase(TestCase):
    """One llama-server with four slots and one tokid before it for all tests of the class."""

    slots = 4

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.llama = cls.start_llama(slots=cls.slots)
        cls.tokid = cls.start_tokid(backend=cls.llama.url)

    def chat(self, messages, **more):
        return post(
            self.tokid.url + "/v1/chat/completions",
            {"model": "m", "messages": messages, "temperature": 0, "max_tokens": 8, **more},
        )


def in_parallel(functions):
    """Runs the functions at once, each in a thread; their values, or the first exception."""
    values, errors = [None] * len(functions), []

    def run(at, function):
        try:
            values[at] = function()
        except BaseException as error:  # handed on below
            errors.append(error)

    threads = [
        threading.Thread(target=run, args=pair, daemon=True) for pair in enumerate(functions)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return values


def main():
    unittest.main(verbosity=2)
