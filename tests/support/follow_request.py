#!/usr/bin/env python3
"""follow_request.py LLAMA-SERVER MODEL TOKID: plays six turns of three conversations on two slots, and prints
what one of them, whose slot was taken by another, moved between client, tokid, llama-server and disk.

The bytes are those of docs/design.md; the times are this machine's, now. Takes a minute with a model of
76 M parameters on two cores, and needs ports and a folder, which it finds and removes.
"""
import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

TURNS = [(1, "First question"), (2, "Other question"), (1, "Second question"), (3, "Third helper"),
         (2, "And now?"), (1, "Third question, please answer")]
FOLLOWED = 4  # whose conversation was displaced by the one before it


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def get(url):
    with urllib.request.urlopen(url, timeout=5) as answer:
        return answer.read().decode()


class Relay:
    """Between tokid and llama-server: how many bytes each exchange took, heads included."""

    def __init__(self, port, backend):
        self.port, self.backend, self.seen = port, backend, []

    async def serve(self, reader, writer):
        to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self.backend)
        now = None

        async def up():
            nonlocal now
            while data := await reader.read(1 << 20):
                if re.match(rb"(GET|POST) ", data):
                    now = {"call": " ".join(data.split(b"\r\n")[0].decode().split()[:2]), "up": 0, "down": 0,
                           "began": time.monotonic(), "ended": 0}
                    self.seen.append(now)
                now["up"] += len(data)
                to_writer.write(data)
                await to_writer.drain()
            to_writer.close()

        async def down():
            while data := await to_reader.read(1 << 20):
                now["down"] += len(data)
                now["ended"] = time.monotonic()
                writer.write(data)
                await writer.drain()
            writer.close()

        try:
            await asyncio.gather(up(), down(), return_exceptions=True)
        except asyncio.CancelledError:
            pass  # the end


def system_prompt(number):
    rules = (f"Rule {number}.{k}: answer in few words and name the file." for k in range(30))
    return f"You are helper number {number}. " + " ".join(rules)


def turn(url, messages, question):
    messages.append({"role": "user", "content": question})
    body = json.dumps({"model": "m", "max_tokens": 8, "temperature": 0, "messages": messages}).encode()
    request = urllib.request.Request(url + "/v1/chat/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        text = answer.read()
    said = json.loads(text)
    messages.append({"role": "assistant", "content": said["choices"][0]["message"]["content"]})
    return len(body), len(text), said["timings"]


def stored(folder):
    return {name: os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder) if name.endswith(".trkv")}


async def play(llama, model, tokid, folder):
    slots, data = os.path.join(folder, "slots"), os.path.join(folder, "data")
    os.mkdir(slots)
    llama_port, relay_port, tokid_port = free_port(), free_port(), free_port()
    url = f"http://127.0.0.1:{tokid_port}"
    children = []

    def start(name, *command):
        with open(os.path.join(folder, name), "wb") as log:
            children.append(subprocess.Popen(command, stdout=log, stderr=log))

    start("llama.log", llama, "-m", model, "--host", "127.0.0.1", "--port", str(llama_port), "-np", "2", "-c", "8192",
          "--cache-ram", "0", "--slot-save-path", slots)
    relay = Relay(relay_port, llama_port)
    server = await asyncio.start_server(relay.serve, "127.0.0.1", relay_port)
    try:
        start("tokid.log", tokid, "--listen", f"127.0.0.1:{tokid_port}", "--data-dir", data, "--slot-dir", slots,
              "--backend", f"http://127.0.0.1:{relay_port}")
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            await asyncio.sleep(0.5)
            try:
                if '"ok"' in await asyncio.to_thread(get, url + "/toki/health"):
                    break
            except OSError:
                pass
        conversations, kv = {}, os.path.join(data, "kv")
        for number, (who, question) in enumerate(TURNS):
            messages = conversations.setdefault(who, [{"role": "system", "content": system_prompt(who)}])
            before, calls = stored(kv), len(relay.seen)
            body, answer, timings = await asyncio.to_thread(turn, url, messages, question)
            if number == 0:
                print(f"cold, for comparison: {timings['prompt_n']} tokens computed in {timings['prompt_ms']:.0f} ms")
            await asyncio.to_thread(get, url + "/toki/stats")
            await asyncio.sleep(2)  # the save of what is new comes half a second after the answer
            if number == FOLLOWED:
                print(f"client -> tokid: {body} bytes of body; tokid -> client: {answer} bytes of body")
                for seen in relay.seen[calls:]:
                    if seen["call"] not in ("GET /health", "GET /props"):
                        print(f"tokid -> llama-server: {seen['call']}: {seen['up']} bytes there, {seen['down']} back, "
                              f"{(seen['ended'] - seen['began']) * 1000:.1f} ms")
                print(f"reused {timings['cache_n']}, computed {timings['prompt_n']} in {timings['prompt_ms']:.0f} ms")
                new = {name: size for name, size in stored(kv).items() if name not in before}
                print(f"new segments: {new}; all: {sum(stored(kv).values())} bytes")
                with open(os.path.join(folder, "tokid.log"), encoding="utf-8") as log:
                    print([line.strip() for line in log if " request " in line][-1])
    finally:
        for child in reversed(children):
            child.send_signal(signal.SIGTERM)
            child.wait()
        server.close()


def main():
    if len(sys.argv) != 4:
        print(__doc__)
        return 2
    folder = tempfile.mkdtemp(prefix="toki-follow-")
    try:
        asyncio.run(play(*sys.argv[1:], folder))
    finally:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
