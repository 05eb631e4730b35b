#!/usr/bin/env python3
"""Hours of mixed use of tokid, and what grows meanwhile.

    tests/soak.py [--minutes 20] [--at-once 12] [--seed 1] [--build build/release] [--report FILE]

Two tokids run at once: one before a real llama-server with the tiny random model, with a store on
disk, and one before the scripted llama-server of the network tests. Each gets ordinary chats,
streams, completions, large bodies, malformed ones, calls that clients leave in the middle, pins,
flushes and looks at its pages; now and then its llama-server is killed and started again.

Every request must end as its kind may: answered, refused with an error in JSON, or left by the
client. A request without an answer is lost. After the warm up (a fifth of the time, and until the store
on disk is full, whose catalogue is in memory; at most half of the time) and at the end the figures are
taken at rest, and what grew is printed. Ends with 1 when a request was lost or ended
wrongly, when memory grew by 5 % or more, or when descriptors grew.

What is needed is what tests/run.sh brings; only the standard library is used.
"""

import argparse
import collections
import http.client
import json
import os
import random
import shutil
import signal
import socket
import statistics
import sys
import tempfile
import threading
import time
import urllib.parse

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "e2e"))

# So small that all caches are full after the warm up: what grows behind it is no cache.
CACHES = ["--tree-mib", "4", "--max-prompts", "300", "--prompts-mib", "4", "--token-cache-mib", "4"]
WARM_UP, LONGEST_WARM_UP = 0.2, 0.5  # of the time
STORE_GIB = 1  # the least there is
MEMORY_GROWTH = 0.05
ANSWER_LIMIT_S = 120  # an answer that takes longer is lost
RESTART_EVERY_S = 90
MALFORMED = (
    b'{"messages":',
    b"[]",
    b"null",
    b'{"messages":[{"role":"user","content":"a"}],"messages":1}',
    b'{"messages":[{"role":"user","content":"\xff\xfe"}]}',
    b'{"messages":"no list"}',
    b"\x00" * 100,
    b'{"prompt":' + b"[" * 2000,
)


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--at-once", type=int, default=12, help="clients of each tokid")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--build", default="build/release", help="folder of a build with tests")
    parser.add_argument("--report", help="writes all samples there as JSON")
    return parser.parse_args()


class Fates:
    """What became of the requests, by kind; and the first few that ended wrongly."""

    def __init__(self):
        self.lock = threading.Lock()
        self.counts = collections.Counter()
        self.wrong = []

    def add(self, kind, fate, detail=""):
        with self.lock:
            self.counts[kind, fate] += 1
            if fate in ("lost", "wrong") and len(self.wrong) < 20:
                self.wrong.append(f"{kind}: {fate}: {detail}")

    def bad(self):
        return sum(n for (_, fate), n in self.counts.items() if fate in ("lost", "wrong"))


class Client(threading.Thread):
    """Sends one request after the other until told to stop; a new connection now and then."""

    def __init__(self, rig, number, seed, words):
        super().__init__(daemon=True)
        self.rig, self.number, self.words = rig, number, words
        self.random = random.Random(f"soak {seed} {number}")
        self.connection = None
        self.history = []

    def run(self):
        kinds = {
            self.chat: 40,
            self.stream: 25,
            self.completion: 10,
            self.leave_early: 10,
            self.malformed: 6,
            self.large: 2,
            self.page: 4,
            self.unknown: 2,
            self.pin: 1,
            self.flush: 1,
        }
        while not self.rig.ending.is_set():
            self.rig.gate.wait()
            kind = self.random.choices(list(kinds), list(kinds.values()))[0]
            begun = time.monotonic()
            with self.rig.at_work():
                try:
                    kind()
                except (OSError, http.client.HTTPException) as error:
                    # An answer that had begun when the server was killed is cut off, for all to see.
                    fate = "broken off" if self.rig.killed_at > begun else "lost"
                    self.rig.fates.add(kind.__name__, fate, f"{type(error).__name__}: {error}")
                    self.disconnect()

    def connect(self):
        parsed = urllib.parse.urlsplit(self.rig.url)
        if self.connection is None or self.random.random() < 0.1:
            self.disconnect()
            self.connection = http.client.HTTPConnection(
                parsed.hostname, parsed.port, timeout=ANSWER_LIMIT_S
            )
        return self.connection

    def disconnect(self):
        if self.connection is not None:
            self.connection.close()
        self.connection = None

    def call(self, kind, method, path, body=None, may=range(200, 300)):
        """Sends it and reads the whole answer. 5xx and 429 are fair while the server is away."""
        connection = self.connect()
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        connection.request(method, path, data, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        if answer.will_close:
            self.disconnect()
        if answer.status in may:
            self.rig.fates.add(kind, "answered" if answer.status < 300 else "refused")
            return text
        refused = answer.status in (429, 500, 502, 503, 504)
        try:
            refused = refused and "error" in json.loads(text)
        except ValueError:
            refused = False
        self.rig.fates.add(kind, "refused" if refused else "wrong", f"{answer.status} {text[:200]!r}")
        return None

    def prompt(self):
        """A conversation that goes on, or begins anew."""
        if len(self.history) > 8 or self.random.random() < 0.15:
            self.history = []
        if not self.history:
            system = self.words(150, f"system {self.random.randrange(3)}")
            self.history = [{"role": "system", "content": system}]
        turn = self.words(self.random.randrange(5, 60), str(self.random.random()))
        self.history.append({"role": "user", "content": turn})
        return self.history

    def body(self, **more):
        return {"model": "m", "messages": self.prompt(), "max_tokens": 8, "temperature": 0, **more}

    def chat(self):
        text = self.call("chat", "POST", "/v1/chat/completions", self.body())
        if text:
            self.history.append(json.loads(text)["choices"][0]["message"])

    def stream(self):
        text = self.call("stream", "POST", "/v1/chat/completions", self.body(stream=True))
        if text and b"[DONE]" not in text and b'"error"' not in text:
            self.rig.fates.add("stream", "wrong", f"no end: {text[-200:]!r}")

    def completion(self):
        prompt = self.words(200, f"text {self.random.randrange(20)}")
        self.call("completion", "POST", "/completion", {"prompt": prompt, "n_predict": 4})

    def malformed(self):
        body = self.random.choice(MALFORMED)
        self.call("malformed", "POST", "/v1/chat/completions", body, range(400, 500))

    def large(self):
        # Larger than any context: the server's own error comes through.
        size = self.random.choice((1 << 20, 6 << 20))
        messages = [{"role": "user", "content": "a" * size}]
        self.call(
            "large", "POST", "/v1/chat/completions", {"messages": messages, "max_tokens": 1},
            (200, 400, 413),
        )

    def page(self):
        path = self.random.choice(
            ("/toki/stats", "/metrics", "/toki/slots", "/toki/overview", "/v1/models", "/toki/")
        )
        self.call("page", "GET", path)

    def unknown(self):
        path = self.random.choice(("/nothing", "/v1/nothing", "/toki/nothing", "/%00", "/v1//x"))
        self.call("unknown", "GET", path, may=range(200, 500))

    def pin(self):
        text = self.words(300, f"pin {self.random.randrange(2)}")
        if self.random.random() < 0.5:
            self.call("pin", "POST", "/toki/pins", {"text": text}, (200, 201, 202, 409))
        else:
            found = self.call("pin", "GET", "/toki/pins")
            pins = json.loads(found)["pins"] if found else []
            if pins:
                number = self.random.choice(pins)["id"]
                self.call("pin", "DELETE", f"/toki/pins?id={number}", may=(200, 204, 404))

    def flush(self):
        self.call("flush", "POST", "/toki/flush", may=(200, 409))

    def leave_early(self):
        """Sends a request, or half of one, and is gone at some moment of the answer."""
        self.disconnect()
        parsed = urllib.parse.urlsplit(self.rig.url)
        body = json.dumps(self.body(stream=self.random.random() < 0.7, max_tokens=64)).encode()
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode()
        whole = head + body
        with socket.create_connection((parsed.hostname, parsed.port), 30) as peer:
            part = self.random.random()
            peer.sendall(whole if part < 0.8 else whole[: int(len(whole) * part)])
            if self.random.random() < 0.5:
                peer.settimeout(self.random.random() * 0.2)
                try:
                    peer.recv(200)
                except socket.timeout:
                    pass
            if self.random.random() < 0.3:  # ends with RST
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.rig.fates.add("leave_early", "left")


class Rig:
    """A tokid, what stands behind it, its clients and its figures."""

    def __init__(self, name, tokid, server, server_folder=None):
        self.name, self.tokid, self.server, self.server_folder = name, tokid, server, server_folder
        self.url = tokid.url
        self.fates = Fates()
        self.ending, self.gate = threading.Event(), threading.Event()
        self.gate.set()
        self.busy, self.nobody = 0, threading.Condition()
        self.killed_at = 0  # its server, last
        self.clients = []

    def start(self, count, seed, words):
        self.clients = [Client(self, i, f"{seed} {self.name}", words) for i in range(count)]
        for client in self.clients:
            client.start()

    def at_work(self):
        rig = self

        class AtWork:
            def __enter__(self):
                with rig.nobody:
                    rig.busy += 1

            def __exit__(self, *_):
                with rig.nobody:
                    rig.busy -= 1
                    rig.nobody.notify_all()

        return AtWork()

    def rest(self):
        """Holds the clients, and waits until nothing is on its way."""
        self.gate.clear()
        with self.nobody:
            if not self.nobody.wait_for(lambda: self.busy == 0, 2 * ANSWER_LIMIT_S):
                raise AssertionError(f"{self.name}: {self.busy} clients still wait")
        for client in self.clients:
            client.disconnect()
        return self.tokid.settled_stats()

    def go_on(self):
        self.gate.set()

    def sample(self):
        process = f"/proc/{self.tokid.process.child.pid}"
        with open(f"{process}/status") as file:
            status = dict(line.split(":", 1) for line in file)
        folders = {"state": self.tokid.data_dir, "slot files": self.server_folder}
        return {
            "memory KiB": int(status["VmRSS"].split()[0]),
            "threads": int(status["Threads"]),
            "descriptors": len(os.listdir(f"{process}/fd")),
            "index.db KiB": file_bytes(os.path.join(self.tokid.data_dir, "index.db")) // 1024,
            **{f"{k} KiB": folder_bytes(v) // 1024 for k, v in folders.items() if v},
        }


def file_bytes(path):
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def folder_bytes(folder):
    return sum(file_bytes(os.path.join(at, name)) for at, _, names in os.walk(folder) for name in names)


def restart_servers(rigs, seed, done):
    """Kills one llama-server after the other, and starts it again."""
    rng = random.Random(f"restarts {seed}")
    while not done.wait(RESTART_EVERY_S * (0.5 + rng.random())):
        rig = rng.choice(rigs)
        if rig.gate.is_set():
            rig.killed_at = time.monotonic()
            rig.server.kill()
            rig.server.start()


def quiet_sample(rigs, begun):
    """All tokids at rest, several looks at each: the smallest memory counts."""
    samples = []
    for rig in rigs:
        stats = rig.rest()
        looks = []
        for _ in range(5):
            time.sleep(0.2)
            looks.append(rig.sample())
        least = {key: min(look[key] for look in looks) for key in looks[0]}
        samples.append({"rig": rig.name, "seconds": round(time.monotonic() - begun), **least,
                        "requests": stats["requests_total"]})
    for rig in rigs:
        rig.go_on()
    return samples


def report(rigs, samples):
    bad = False
    for rig in rigs:
        own = [sample for sample in samples if sample["rig"] == rig.name]
        warm, last = own[0], own[-1]
        print(f"\n{rig.name}: {last['requests']} requests, {len(own)} looks at rest")
        for key in warm:
            if key in ("rig", "seconds", "requests"):
                continue
            growth = (last[key] - warm[key]) / warm[key] * 100 if warm[key] else 0
            most = max(sample[key] for sample in own)
            print(f"  {key:16} warm {warm[key]:>10,}  end {last[key]:>10,}  {growth:+6.1f} %"
                  f"  most {most:,}")
        kinds = sorted({kind for kind, _ in rig.fates.counts})
        for kind in kinds:
            fates = {fate: n for (k, fate), n in sorted(rig.fates.counts.items()) if k == kind}
            print(f"  {kind:16} {', '.join(f'{n:,} {fate}' for fate, n in fates.items())}")
        for line in rig.fates.wrong:
            print(f"  ! {line}")
        # One look differs from the next by some pages: the last three against the first.
        end = statistics.median(sample["memory KiB"] for sample in own[-3:])
        if end >= warm["memory KiB"] * (1 + MEMORY_GROWTH):
            print(f"  ! memory grew: {warm['memory KiB']:,} to {end:,.0f} KiB")
            bad = True
        # Connections to the server are kept, more or fewer of them.
        if min(s["descriptors"] for s in own[-3:]) > max(s["descriptors"] for s in own[:3]):
            print("  ! descriptors grew")
            bad = True
        bad = bad or rig.fates.bad() > 0
    return bad


class FakeServer:
    """The scripted llama-server as a program, on one port for all of its lives."""

    def __init__(self, process_class, program, folder, wait_until, get):
        self.make, self.program, self.folder = process_class, program, folder
        self.wait_until, self.get = wait_until, get
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.process = None
        self.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def healthy(self):
        try:
            return self.get(self.url + "/health", limit_s=5).status == 200
        except OSError:
            return False

    def start(self):
        if self.process:
            self.process.close()
        self.process = self.make(
            [self.program, "--port", str(self.port), "-np", "4"], self.folder, "scripted"
        )
        self.process.wait_for(self.healthy, "the scripted server answers")

    def kill(self):
        self.process.kill()

    def close(self):
        self.process.close()


def main():
    settings = arguments()
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    build = os.path.join(root, settings.build)
    os.environ.setdefault("TOKI_TOKID", os.path.join(build, "tokid", "tokid"))
    os.environ.setdefault("TOKI_MODEL", os.path.join(root, "build/dev/tests/e2e/tiny.gguf"))
    os.environ.setdefault("TOKI_PARTS", os.path.join(root, "build/parts"))
    import harness

    harness.require_parts()
    scripted = os.path.join(root, "build/dev/tests/net/toki_fake_llama_server")
    folder = tempfile.mkdtemp(prefix="toki-soak-")
    print(f"soak: {settings.minutes:g} minutes, {settings.at_once} clients of each tokid, seed "
          f"{settings.seed}, {os.cpu_count()} cores, {os.environ['TOKI_TOKID']}", flush=True)
    closing = []
    try:
        llama = harness.LlamaServer(folder, slots=4)
        closing.append(llama)
        options = ["--slot-dir", llama.slot_folder, "--kv-gib", str(STORE_GIB), "--log-level", "warn", *CACHES]
        first = harness.Tokid(folder, backend=llama.url, options=options, name="tokid-real")
        closing.append(first)
        fake = FakeServer(harness.Process, scripted, folder, harness.wait_until, harness.get)
        closing.append(fake)
        second = harness.Tokid(folder, backend=fake.url, options=["--log-level", "warn", *CACHES],
                               name="tokid-scripted")
        closing.append(second)
        rigs = [
            Rig("real llama-server", first, llama, llama.slot_folder),
            Rig("scripted server", second, fake),
        ]
        bad = run(settings, rigs, harness.words)
    finally:
        for part in reversed(closing):
            part.close()
        shutil.rmtree(folder, ignore_errors=True)
    print("soak: failed" if bad else "soak: passed")
    return 1 if bad else 0


def warm_up(rigs, begun, seconds):
    """Until all caches are full: one that grows within its limit afterwards is no leak."""
    stored = [rig for rig in rigs if rig.server_folder]
    while time.monotonic() < begun + LONGEST_WARM_UP * seconds:
        full = all(rig.sample()["state KiB"] > 0.95 * STORE_GIB * 2**20 for rig in stored)
        if full and time.monotonic() > begun + WARM_UP * seconds:
            return
        time.sleep(1)


def run(settings, rigs, words):
    begun, done = time.monotonic(), threading.Event()
    end = begun + settings.minutes * 60
    for rig in rigs:
        rig.start(settings.at_once, settings.seed, words)
    restarts = threading.Thread(target=restart_servers, args=(rigs, settings.seed, done), daemon=True)
    restarts.start()
    samples = []
    warm_up(rigs, begun, settings.minutes * 60)
    warm = time.monotonic()
    for at in (warm + (end - warm) * i / 8 for i in range(9)):  # eight looks after it, evenly
        while time.monotonic() < min(at, end):
            time.sleep(min(1, max(0, at - time.monotonic())))
        samples += quiet_sample(rigs, begun)
        for sample in samples[-len(rigs):]:
            print(json.dumps(sample), flush=True)
    done.set()
    restarts.join()
    for rig in rigs:
        rig.ending.set()
    for rig in rigs:
        for client in rig.clients:
            client.join(ANSWER_LIMIT_S)
    if settings.report:
        with open(settings.report, "w") as file:
            json.dump({"samples": samples}, file, indent=1)
    return report(rigs, samples)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sys.exit(main())
