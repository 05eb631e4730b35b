"""Several real llama-servers behind one tokid, and a restart of tokid that loses no request."""

import json
import os
import socket
import subprocess
import threading
import time

import harness
from harness import call, get, post, words

harness.require_parts()
if not os.path.exists(os.environ.get("TOKI_GEMMA3", "")):
    harness.skip("TOKI_GEMMA3 names no file")


def chat(url, model, *turns, **more):
    messages = [{"role": "system", "content": words(200, f"system of {model}")}]
    for at, turn in enumerate(turns):
        messages.append({"role": "assistant" if at % 2 else "user", "content": turn})
    body = {"model": model, "messages": messages, "temperature": 0, "max_tokens": 4, **more}
    return post(url + "/v1/chat/completions", body)


class SeveralModels(harness.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.slot_dir = os.path.join(cls.folder, "slots")
        cls.servers = {}
        for name, folder, model, extra in (
            ("small", "small", os.environ["TOKI_MODEL"], ()),
            ("google/gemma", "google%2Fgemma", os.environ["TOKI_GEMMA3"], ("--swa-full",)),
        ):
            own = os.path.join(cls.slot_dir, folder)
            os.makedirs(own)
            cls.servers[name] = cls.start_llama(
                slots=2, name=folder, model=model, extra=("--slot-save-path", own, *extra)
            )
        cls.options = ["--slot-dir", cls.slot_dir, "--kv-gib", "1"]
        for name, server in cls.servers.items():
            cls.options += ["--model", f"{name}={server.url}"]

    def start(self, name):
        data_dir = os.path.join(self.folder, "state")
        tokid = self.start_tokid(name=name, data_dir=data_dir, options=self.options)
        for name in ("small", "google%2Fgemma"):
            tokid.process.wait_for(
                lambda name=name: get(f"{tokid.url}/toki/health?backend={name}").status == 200,
                f"{name} is ready",
            )
        return tokid

    def test_each_has_its_own_cache_and_finds_it_after_a_restart(self):
        tokid = self.start("before")
        listed = get(tokid.url + "/v1/models").ok()["data"]
        self.assertEqual([one["id"] for one in listed], list(self.servers))
        self.assertNotEqual(listed[0]["meta"]["n_params"], listed[1]["meta"]["n_params"])
        for name in self.servers:
            first = chat(tokid.url, name, "One?")
            self.assertEqual(first.headers["x-toki-cache"], "miss", name)
            again = chat(tokid.url, name, "One?")
            self.assertEqual(again.headers["x-toki-cache"], "hit", name)
            self.assertGreater(again.ok()["timings"]["cache_n"], 100, name)
            texts = [one.ok()["choices"][0]["message"]["content"] for one in (first, again)]
            self.assertEqual(texts[0], texts[1])
        for name in ("small", "google%2Fgemma"):
            stats = get(f"{tokid.url}/toki/stats?backend={name}").ok()
            self.assertEqual(stats["requests_total"], 2, name)
            flushed = call("POST", f"{tokid.url}/toki/flush?backend={name}").ok()
            self.assertEqual(flushed["unsaved"], [], name)
        refused = chat(tokid.url, "other", "One?")
        self.assertEqual(refused.status, 404)
        self.assertEqual(refused.json()["error"]["type"], "model_not_found")
        self.assertIn("small, google/gemma", refused.json()["error"]["message"])
        self.assertEqual(tokid.stop(), 0)
        for server in self.servers.values():
            server.start()
        tokid = self.start("after")
        for name in self.servers:
            after = chat(tokid.url, name, "One?")
            self.assertGreater(after.ok()["timings"]["cache_n"], 100, name)
            self.assertEqual(after.headers["x-toki-source"], "disk", name)
        tokid.stop()


class Restart(harness.TestCase):
    def test_no_request_is_lost_when_clients_try_again(self):
        llama = self.start_llama(slots=2)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            listen = f"127.0.0.1:{probe.getsockname()[1]}"
        more = {"backend": llama.url, "listen": listen, "options": ["--drain-ms", "60000"]}
        tokid = self.start_tokid(**more)
        statuses, gaps, failures, done = [], [], [], threading.Event()

        def ask(who):
            try:
                ask_until_done(who)
            except Exception as error:  # the thread would die unheard
                failures.append(repr(error))
                done.set()

        def ask_until_done(who):
            number = 0
            while not done.is_set() or number < 3:
                began = time.monotonic()
                while True:
                    try:
                        answer = chat(tokid.url, "m", f"{who} asks {number}", max_tokens=40)
                        break
                    except ConnectionRefusedError:  # what clients of OpenAI's try again, too
                        time.sleep(0.05)
                gaps.append(time.monotonic() - began)
                statuses.append(answer.status)
                number += 1

        threads = [threading.Thread(target=ask, args=(who,), daemon=True) for who in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(3):
            seen = len(statuses)
            harness.wait_until(
                lambda seen=seen: failures or len(statuses) > seen + 3, "answers come"
            )
            self.assertEqual(tokid.process.stop(60), 0)
            tokid = self.start_tokid(**more, name=f"tokid-{seen}", data_dir=tokid.data_dir)
        done.set()
        for thread in threads:
            thread.join(60)
            self.assertFalse(thread.is_alive())
        print(f"{len(statuses)} requests over three restarts, the longest took {max(gaps):.2f} s")
        self.assertEqual(failures, [])
        self.assertEqual(set(statuses), {200})


class Log(harness.TestCase):
    def start_unread(self, backend, *options):
        words_of_it = [os.environ["TOKI_TOKID"], "--listen", "127.0.0.1:0", "--backend", backend]
        words_of_it += ["--data-dir", os.path.join(self.folder, "unread"), *options]
        tokid = subprocess.Popen(
            words_of_it, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.addCleanup(tokid.communicate)
        self.addCleanup(tokid.kill)
        return tokid, tokid.stdout.readline().split()[-1]

    def test_a_log_that_nobody_reads_holds_up_nothing(self):
        llama = self.start_llama(slots=1, name="unread")
        tokid, url = self.start_unread(llama.url)
        harness.wait_until(lambda: get(url + "/toki/ready").status == 200, "it is ready", 30)
        for _ in range(400):  # of lines, more than a pipe holds
            self.assertEqual(post(url + "/completion", {"prompt": "One", "n_predict": 1}).status, 200)
        tokid.terminate()
        self.assertEqual(tokid.wait(30), 0)
        log = tokid.stderr.read()
        self.assertGreater(log.count("request id="), 100)
        self.assertLess(log.count("request id="), 400)

    def test_lines_that_nobody_reads_are_dropped_in_the_end_and_counted(self):
        tokid, url = self.start_unread("http://127.0.0.1:9", "--log-format", "json")
        sent, lines = 0, []

        def said():
            nonlocal sent
            sent += 1
            self.assertEqual(post(url + "/completion", {"prompt": "One"}).status, 503)
            return any("were dropped" in line for line in lines)

        for _ in range(5000):
            said()
        reader = threading.Thread(target=lambda: lines.extend(tokid.stderr), daemon=True)
        reader.start()
        harness.wait_until(said, "the log says what was dropped", 30)
        tokid.terminate()
        self.assertEqual(tokid.wait(30), 0)
        reader.join()
        told = [json.loads(line) for line in lines]
        texts = [line.get("message", "") for line in told]
        dropped = next(text for text in texts if "were dropped" in text)
        requests = sum(line.get("event") == "request" for line in told)
        self.assertEqual(requests + int(dropped.split()[0]), sent)


if __name__ == "__main__":
    harness.main()
