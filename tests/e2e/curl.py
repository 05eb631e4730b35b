"""What curl sends and gets through tokid: answers, streams, odd ways to send a body, everything
that passes through.
"""

import json
import os
import shutil
import subprocess

import harness
from harness import words

harness.require_parts()
if not shutil.which("curl"):
    harness.skip("no curl")


class Curl(harness.StandardCase):
    def curl(self, *arguments, url=None, path="", body=None, check=True):
        """Runs curl; (status, headers by lower-case name, body bytes)."""
        command = [
            "curl",
            "-sS",
            "-N",
            "--max-time",
            "120",
            "-D",
            os.path.join(self.folder, "headers"),
            *arguments,
        ]
        if body is not None:
            command += ["-H", "Content-Type: application/json", "--data-binary", "@-"]
        command.append((url or self.tokid.url) + path)
        ended = subprocess.run(command, input=body, capture_output=True, timeout=150)
        if check:
            self.assertEqual(ended.returncode, 0, ended.stderr.decode())
        with open(os.path.join(self.folder, "headers"), encoding="latin-1") as file:
            # The last head counts: a 100 Continue may stand before it.
            lines = file.read().strip().split("\n\n")[-1].split("\r\n\r\n")[-1].splitlines()
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines[1:])
        }
        return int(lines[0].split()[1]), headers, ended.stdout

    def chat_body(self, seed, **more):
        return json.dumps(
            {
                "model": "m",
                "temperature": 0,
                "max_tokens": 8,
                **more,
                "messages": [
                    {"role": "system", "content": words(100, "curl")},
                    {"role": "user", "content": words(20, seed)},
                ],
            }
        ).encode()

    def test_a_repeated_chat_is_a_hit_and_says_so(self):
        body = self.chat_body("repeat")
        status, headers, first = self.curl(path="/v1/chat/completions", body=body)
        self.assertEqual(status, 200, first)
        slot = headers["x-toki-slot"]
        status, headers, second = self.curl(path="/v1/chat/completions", body=body)
        self.assertEqual(status, 200, second)
        first, second = json.loads(first), json.loads(second)
        tokens = second["usage"]["prompt_tokens"]
        self.assertEqual(second["timings"]["cache_n"], tokens - 1)
        self.assertEqual(headers["x-toki-cache"], "hit")
        self.assertEqual(headers["x-toki-slot"], slot)
        self.assertEqual(headers["x-toki-reason"], "slot_prefix")
        self.assertEqual(int(headers["x-toki-reused"]), tokens - 1)

    def test_a_streamed_chat_comes_as_events_and_ends_with_done(self):
        status, headers, raw = self.curl(
            path="/v1/chat/completions", body=self.chat_body("stream", stream=True)
        )
        self.assertEqual(status, 200, raw)
        self.assertTrue(headers["content-type"].startswith("text/event-stream"), headers)
        events = [event for event in raw.decode().split("\n\n") if event]
        self.assertEqual(events[-1], "data: [DONE]")
        for event in events[:-1]:
            self.assertTrue(event.startswith("data: {"), event)
        last = json.loads(events[-2][6:])
        self.assertIn("timings", last)

    def test_http_1_0_gets_a_whole_answer(self):
        for stream in (False, True):
            status, headers, raw = self.curl(
                "--http1.0", path="/v1/chat/completions", body=self.chat_body("old", stream=stream)
            )
            self.assertEqual(status, 200, raw)
            self.assertNotIn("transfer-encoding", headers)
            self.assertTrue(raw.rstrip().endswith(b"[DONE]" if stream else b"}"), raw[-100:])

    def test_a_body_may_come_in_chunks(self):
        status, _, raw = self.curl(
            "-H",
            "Transfer-Encoding: chunked",
            path="/v1/chat/completions",
            body=self.chat_body("chunks"),
        )
        self.assertEqual(status, 200, raw)

    def test_a_big_body_that_waits_for_100_continue_passes(self):
        text = words(300000, "big")
        status, _, raw = self.curl(
            "-H",
            "Expect: 100-continue",
            path="/tokenize",
            body=json.dumps({"content": text}).encode(),
        )
        self.assertEqual(status, 200, raw[:300])
        self.assertGreater(len(json.loads(raw)["tokens"]), 300000)

    def test_two_requests_on_one_connection(self):
        bodies = []
        for name in ("one", "two"):
            bodies.append(os.path.join(self.folder, name + ".json"))
            with open(bodies[-1], "wb") as file:
                file.write(self.chat_body(name))
        url = self.tokid.url + "/v1/chat/completions"
        options = ["-H", "Content-Type: application/json", "-w", "\n%{num_connects}\n"]
        ended = subprocess.run(
            [
                "curl",
                "-sS",
                "--max-time",
                "120",
                *options,
                "--data-binary",
                "@" + bodies[0],
                url,
                "--next",
                "-sS",
                *options,
                "--data-binary",
                "@" + bodies[1],
                url,
            ],
            capture_output=True,
            timeout=150,
        )
        lines = ended.stdout.decode().strip().splitlines()
        self.assertEqual(len(lines), 4, ended)
        self.assertEqual(
            [lines[1], lines[3]], ["1", "0"], "the second request opened a connection of its own"
        )
        for line in (lines[0], lines[2]):
            self.assertIn("choices", json.loads(line))

    def test_everything_else_passes_through_byte_for_byte(self):
        tokenize = json.dumps({"content": "hello <|im_end|> there", "parse_special": True}).encode()
        calls = [
            ("GET", "/props", None),
            ("GET", "/health", None),
            ("GET", "/v1/health", None),
            ("GET", "/", None),
            ("GET", "/no/such/path?x=%20y", None),
            ("POST", "/tokenize", tokenize),
            ("POST", "/detokenize", b'{"tokens":[259,300]}'),
            ("POST", "/tokenize", b"not json"),
            ("POST", "/v1/embeddings", b'{"input":"x"}'),
            ("OPTIONS", "/v1/chat/completions", None),
            (
                "POST",
                "/v1/messages/count_tokens",
                b'{"model":"m","messages":[{"role":"user","content":"hi"}]}',
            ),
            ("DELETE", "/v1/models", None),
            ("GET", "/v1/chat/completions", None),
        ]
        for method, path, body in calls:
            with self.subTest(method=method, path=path):
                through = self.curl("-X", method, path=path, body=body)
                direct = self.curl("-X", method, url=self.llama.url, path=path, body=body)
                self.assertEqual(through[0], direct[0], through[2][:200])
                self.assertEqual(through[2], direct[2])
                for name in ("content-type", "content-encoding"):
                    self.assertEqual(through[1].get(name), direct[1].get(name), name)
                self.assertNotIn("access-control-allow-origin", through[1])

    def test_the_servers_refusals_pass_unchanged(self):
        too_long = json.dumps({"prompt": words(6000, "long"), "n_predict": 1}).encode()
        for path, body in (
            ("/completion", too_long),
            ("/v1/chat/completions", b'{"model":"m"}'),
            ("/v1/chat/completions", b'{"messages":[{"role":"user"}]}'),
            ("/completion", b'{"n_predict":1}'),
            ("/infill", b'{"input_prefix":1}'),
        ):
            with self.subTest(path=path, body=body[:60]):
                through = self.curl(path=path, body=body)
                direct = self.curl(url=self.llama.url, path=path, body=body)
                self.assertEqual(through[0], direct[0], through[2])
                self.assertEqual(json.loads(through[2]), json.loads(direct[2]))

    def test_a_broken_body_is_refused_with_the_place_and_goes_nowhere(self):
        generations = self.llama.process.read_log().count("launch_slot_")
        for body, offset in (
            (b'{"model":"m","messages":[}', 25),
            (b'{"model":"m"} x', 14),
            (b"[]", 0),
            (b"", 0),
        ):
            with self.subTest(body=body):
                status, _, raw = self.curl(path="/v1/chat/completions", body=body)
                self.assertEqual(status, 400, raw)
                error = json.loads(raw)["error"]
                self.assertEqual((error["code"], error["type"]), (400, "invalid_request_error"))
                self.assertEqual(error["offset"], offset, error)
        self.assertEqual(self.llama.process.read_log().count("launch_slot_"), generations)

    def test_metrics_hold_every_counter_of_the_statistics(self):
        self.curl(path="/v1/chat/completions", body=self.chat_body("metrics"))
        stats = self.tokid.settled_stats()
        status, headers, raw = self.curl(path="/metrics")
        self.assertEqual(status, 200)
        self.assertTrue(headers["content-type"].startswith("text/plain"), headers)
        metrics = dict(
            line.rsplit(" ", 1) for line in raw.decode().splitlines() if line and line[0] != "#"
        )
        for name in stats:
            self.assertIn("toki_" + name, metrics)
        self.assertEqual(float(metrics["toki_requests_total"]), stats["requests_total"])


class Cancel(harness.TestCase):
    """A client that goes away frees its slot at once."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.llama = cls.start_llama(slots=2, context=16384)
        cls.tokid = cls.start_tokid(backend=cls.llama.url)

    def check(self, stream, limit_s):
        cancelled = self.tokid.stats()["requests_cancelled"]
        body = json.dumps(
            {
                "prompt": words(50, "cancel"),
                "n_predict": 16000,
                "ignore_eos": True,
                "stream": stream,
            }
        )
        curl = harness.Process(
            [
                "curl",
                "-sS",
                "-N",
                "-H",
                "Content-Type: application/json",
                "--data-binary",
                body,
                self.tokid.url + "/completion",
            ],
            self.folder,
            f"curl-{stream}",
        )
        self.addCleanup(curl.close)
        busy = lambda: [slot for slot in self.llama.slots() if slot["is_processing"]]
        task = curl.wait_for(busy, "the generation runs")[0]["id_task"]
        if stream:
            curl.wait_for(curl.read_out, "the first event")
        curl.kill()
        self.assertLess(self.llama.wait_ended(task, limit_s), 15000, "it went on to its end")
        self.tokid.stats_when(
            lambda s: s["requests_cancelled"] == cancelled + 1, "the request counts as cancelled"
        )
        self.tokid.stats_when(
            lambda s: s["slots_busy"] + s["slots_fenced"] == 0, "tokid's slot is free"
        )

    def test_a_killed_curl_in_mid_stream_frees_the_slot_within_a_second(self):
        self.check(stream=True, limit_s=1)

    def test_a_killed_curl_that_waits_for_a_whole_answer_frees_the_slot(self):
        # tokid has a second, and llama-server looks only once a second whether its client is still
        # there.
        self.check(stream=False, limit_s=3)


if __name__ == "__main__":
    harness.main()
