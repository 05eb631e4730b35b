#!/usr/bin/env python3
"""Agents with shared system prompts, on llama-server alone and through tokid, one after the other.

    benchmarks/agents.py --llama LLAMA-SERVER --model MODEL.gguf --tokid TOKID [--at-once 4]

Each arm gets a fresh server and fresh folders. Prints for each: prompt tokens that the server says it
computed, their ratio to an oracle that computes each distinct prefix of the prompts once, time to
first token, wall time; then how many texts are equal. --restart stops and starts both in the middle.
"""

import argparse
import http.client
import json
import os
import random
import shutil
import socket
import subprocess
import tempfile
import threading
import time

WORDS = (
    "the cat reads a book about river sea ships nobody knows how old it is and runs on to where "
    "they are one two three four five red blue green house tree road stone light night day"
).split()


def words(count, seed):
    chooser = random.Random(seed)
    return " ".join(chooser.choice(WORDS) for _ in range(count))


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def call(port, method, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    data = None if body is None else json.dumps(body)
    connection.request(method, path, data, {"Content-Type": "application/json"})
    return connection.getresponse()


def wait_for(port, path):
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            if call(port, "GET", path).status == 200:
                return
        except OSError:
            pass
        time.sleep(0.05)
    raise SystemExit(f"nobody answers {path} on port {port}")


class Arm:
    """A server, and in the arm `toki` a tokid before it."""

    def __init__(self, name, options, folder):
        self.name, self.options, self.folder = name, options, folder
        self.slots = os.path.join(folder, "slots")
        os.makedirs(self.slots)
        self.port, self.processes, self.computed_before = free_port(), [], 0
        self.start()

    def start(self):
        more = ["--cache-ram", "0", "--slot-save-path", self.slots] if self.name == "toki" else []
        command = [self.options.llama, "-m", self.options.model, "-np", str(self.options.slots)]
        command += ["-c", str(self.options.slots * self.options.context), "--metrics"]
        self.spawn("llama", [*command, "--port", str(self.port), *more])
        wait_for(self.port, "/health")
        self.front = self.port
        if self.name == "toki":
            self.front = free_port()
            self.spawn(
                "tokid",
                [self.options.tokid, "--listen", f"127.0.0.1:{self.front}", "--slot-dir"]
                + [self.slots, "--backend", f"http://127.0.0.1:{self.port}"]
                + ["--data-dir", os.path.join(self.folder, "data")],
            )
            wait_for(self.front, "/toki/health")
        self.computed_at_start = self.computed_now()

    def spawn(self, name, command):
        with open(os.path.join(self.folder, name + ".log"), "ab") as log:
            self.processes.append(subprocess.Popen(command, stdout=log, stderr=log))

    def computed_now(self):
        text = call(self.port, "GET", "/metrics").read().decode()
        name = "llamacpp:prompt_tokens_total "
        return sum(float(line[len(name) :]) for line in text.splitlines() if line.startswith(name))

    def computed(self):
        return self.computed_before + self.computed_now() - self.computed_at_start

    def stop(self):
        self.computed_before = self.computed()
        for process in reversed(self.processes):
            process.terminate()
            process.wait()
        self.processes = []


class Agent:
    def __init__(self, number, options):
        system = words(options.system_words, f"system {number % options.systems}")
        self.number, self.turn, self.options = number, 0, options
        self.messages = [{"role": "system", "content": system}]

    def ask(self, port):
        """One turn: seconds to the first token, and the text."""
        task = words(self.options.task_words, f"agent {self.number} turn {self.turn}")
        self.turn += 1
        self.messages.append({"role": "user", "content": task})
        body = {"model": "m", "messages": self.messages, "temperature": 0, "stream": True}
        begun, first, text = time.monotonic(), None, ""
        answer = call(port, "POST", "/v1/chat/completions", {**body, "max_tokens": 16})
        for line in answer:
            if line.startswith(b"data: {"):
                choices = json.loads(line[6:]).get("choices") or [{}]
                piece = choices[0].get("delta", {}).get("content")
                if piece:
                    first = first or time.monotonic() - begun
                    text += piece
        self.messages.append({"role": "assistant", "content": text})
        return first or time.monotonic() - begun, text

    def prompts(self):
        return [self.messages[: 2 + 2 * turn] for turn in range(self.turn)]


def play(agents, order, port, at_once, results):
    """Turns in that order, an agent's own one after the other."""
    turn_over, busy = threading.Condition(), set()

    def worker():
        while True:
            with turn_over:
                while order and all(agent in busy for agent in order):
                    turn_over.wait()
                if not order:
                    return
                agent = order.pop(next(i for i, a in enumerate(order) if a not in busy))
                busy.add(agent)
            result = agent.ask(port)
            with turn_over:
                results[(agent.number, agent.turn)] = result
                busy.discard(agent)
                turn_over.notify_all()

    workers = [threading.Thread(target=worker) for _ in range(at_once)]
    for thread in workers:
        thread.start()
    for thread in workers:
        thread.join()


def oracle(agents, port):
    """Distinct prefixes of all prompts."""
    seen = set()
    for agent in agents:
        for messages in agent.prompts():
            prompt = json.load(call(port, "POST", "/apply-template", {"messages": messages}))
            text = {"content": prompt["prompt"], "add_special": True, "parse_special": True}
            prefix = 0
            for token in json.load(call(port, "POST", "/tokenize", text))["tokens"]:
                prefix = hash((prefix, token))
                seen.add(prefix)
    return len(seen)


def run(name, options):
    folder = tempfile.mkdtemp(prefix=f"toki-agents-{name}-")
    arm = Arm(name, options, folder)
    try:
        agents = [Agent(number, options) for number in range(options.agents)]
        order = [agent for agent in agents for _ in range(options.turns)]
        random.Random(options.seed).shuffle(order)
        later = order[len(order) // 2 :] if options.restart else []
        del order[len(order) - len(later) :]
        results, begun = {}, time.monotonic()
        play(agents, order, arm.front, options.at_once, results)
        if options.restart:
            arm.stop()
            arm.start()
            play(agents, later, arm.front, options.at_once, results)
        wall, computed = time.monotonic() - begun, arm.computed()
        firsts = sorted(first for first, _ in results.values())
        p50, p95 = firsts[len(firsts) // 2] * 1000, firsts[len(firsts) * 95 // 100] * 1000
        ratio = computed / oracle(agents, arm.port)
        print(
            f"{name:8} {len(results):4} requests  {computed:8.0f} tokens computed  {ratio:6.3f} x "
            f"oracle  first token {p50:6.0f} / {p95:6.0f} ms  wall {wall:6.1f} s",
            flush=True,
        )
        return {key: text for key, (_, text) in results.items()}
    finally:
        arm.stop()
        shutil.rmtree(folder, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    for name in ("llama", "model", "tokid"):
        parser.add_argument("--" + name, required=True)
    numbers = dict(agents=12, turns=5, systems=3, system_words=400, task_words=40, slots=4)
    for name, value in dict(numbers, context=4096, at_once=1, seed=1).items():
        parser.add_argument("--" + name.replace("_", "-"), type=int, default=value)
    parser.add_argument("--arms", default="direct,toki", help="direct: the server with its RAM cache")
    parser.add_argument("--restart", action="store_true")
    options = parser.parse_args()
    print("settings:", vars(options), flush=True)
    texts = [run(name, options) for name in options.arms.split(",")]
    if len(texts) == 2:
        same = sum(texts[0][key] == texts[1][key] for key in texts[0])
        print(f"equal texts: {same} of {len(texts[0])}")


if __name__ == "__main__":
    main()
