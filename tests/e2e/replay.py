"""toki-replay with a real llama-server: what it reports, and that it leaves nothing behind."""

import http.server
import json
import os
import re
import signal
import subprocess
import threading

import harness

harness.require_parts()
if not os.path.exists(os.environ.get("TOKI_REPLAY", "")):
    harness.skip("TOKI_REPLAY names no file")


def processes_with(text):
    """Process ids whose command line holds `text`, this test's own left out."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                if text.encode() in file.read():
                    found.append(int(entry))
        except OSError:
            pass  # it has just ended
    return found


class ReplayCase(harness.TestCase):
    def setUp(self):
        self.work = os.path.join(self.folder, self._testMethodName)
        self.arms = os.path.join(self.work, "arms")
        os.makedirs(self.arms)
        # In the command line of every llama-server of this test.
        self.mark = "mark-" + os.path.basename(self.folder) + "-" + self._testMethodName

    def command(self, *more):
        return [
            os.environ["TOKI_REPLAY"],
            *("--llama", harness.find_llama_server(), "--model", os.environ["TOKI_MODEL"]),
            *("--tokid", os.environ["TOKI_TOKID"], "--folder", self.arms),
            *("--json", self.path("report.json"), "--html", self.path("report.html")),
            *more,
        ]

    def path(self, name):
        return os.path.join(self.work, name)

    def arm(self, name, llama="", more=""):
        return ["--arm", f"{name}:llama=-t 1 --alias {self.mark} {llama}{more}"]

    def replay(self, *more, status=0):
        done = subprocess.run(
            self.command(*more), capture_output=True, text=True, timeout=300, check=False
        )
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        self.assert_nothing_left()
        return done

    def report(self):
        with open(self.path("report.json"), encoding="utf-8") as file:
            return json.load(file)

    def assert_nothing_left(self):
        harness.wait_until(
            lambda: not processes_with(self.mark) and not processes_with(self.arms),
            "every process of the arms has ended",
        )
        self.assertEqual(os.listdir(self.arms), [])


class Report(ReplayCase):
    def test_agents_on_three_arms_with_a_restart(self):
        done = self.replay(
            *self.arm("direct"),
            *self.arm("toki"),
            *self.arm("cold", more=';body={"cache_prompt":false}'),
            *"--agents 4 --turns 3 --systems 2 --system-words 60 --task-words 10".split(),
            *"--answer-tokens 4 --at-once 2 --context 1024 --restart".split(),
        )
        self.assertIn("ratio", done.stdout)
        report = self.report()
        self.assertFalse(report["interrupted"])
        direct, toki, cold = report["arms"]
        for arm in report["arms"]:
            (run,) = arm["runs"]
            figures = run["figures"]
            self.assertEqual(figures["requests"], 12)
            self.assertEqual(figures["failures"], 0)
            self.assertEqual(figures["hits"] + figures["soft_hits"] + figures["misses"], 12)
            self.assertGreater(figures["output_tokens"], 0)
            self.assertLessEqual(figures["output_tokens"], 4 * 12)
            self.assertGreater(figures["oracle_tokens"], 0)
            self.assertGreater(figures["server_cpu_s"], 0)
            self.assertGreater(figures["server_peak_mib"], 1)
            self.assertLessEqual(figures["first_token_ms_p50"], figures["latency_ms_p50"])
            self.assertEqual(sorted(r["request"] for r in run["requests"]), list(range(12)))
        cold_figures = cold["runs"][0]["figures"]
        # Without reuse everything is computed, by the server's counter and by its answers.
        self.assertEqual(cold_figures["computed_tokens"], cold_figures["prompt_tokens"])
        self.assertEqual(
            cold_figures["computed_tokens_by_usage"], cold_figures["prompt_tokens"]
        )
        self.assertEqual(cold_figures["misses"], 12)
        toki_figures = toki["runs"][0]["figures"]
        self.assertLess(
            toki_figures["computed_tokens"], direct["runs"][0]["figures"]["computed_tokens"]
        )
        self.assertGreater(toki_figures["data_folder_mib"], 0)
        self.assertGreater(toki_figures["tokid_cpu_s"] + toki_figures["tokid_peak_mib"], 1)
        sources = {r["source"] for r in toki["runs"][0]["requests"]}
        self.assertTrue(sources & {"disk", "slot"}, sources)
        self.assertEqual(len(report["comparisons"]), 3)
        for pairs in report["comparisons"]:
            self.assertEqual(
                pairs["pairs"], pairs["identical"] + len(pairs["parted"]), pairs
            )
            self.assertEqual(pairs["pairs"], sum(g["pairs"] for g in pairs["groups"]), pairs)
            self.assertEqual(pairs["pairs"] + pairs["other_prompts"], 12, pairs)
        with open(self.path("report.html"), encoding="utf-8") as file:
            page = file.read()
        self.assertEqual(page.count("<svg"), 4)
        for outside in ("src=", "href=", "url(", "@import", "<script"):
            self.assertNotIn(outside, page)

    def test_restored_answers_are_those_of_a_live_slot(self):
        """Each conversation has a slot of its own on one side, all share one on the other."""
        self.replay(
            *self.arm("live", "--cache-ram 0"),
            *self.arm("toki", "-np 1 -c 1024"),
            *"--agents 5 --turns 6 --systems 5 --system-words 40 --task-words 10".split(),
            *"--answer-tokens 16 --slots 6 --context 1024".split(),
        )
        (pairs,) = self.report()["comparisons"]
        self.assertEqual(pairs["substantive"] + pairs["restore_noise"], 0, pairs)
        restored = [
            group
            for group in pairs["groups"]
            if (group["start_a"], group["start_b"], group["equal_reuse"])
            == ("live", "restored", True)
        ]
        self.assertEqual(len(restored), 1, pairs)
        self.assertGreaterEqual(restored[0]["pairs"], 10)
        self.assertEqual(restored[0]["identical"], restored[0]["pairs"])

    def test_answers_that_differ_are_classified_and_judged_by_embeddings(self):
        embedder = self.start_llama(
            slots=None,
            name="embedder",
            extra=["--embeddings", "--pooling", "mean", "-np", "1", "-c", "512"],
        )
        args = [
            *self.arm("one"),
            *self.arm("other", more=';body={"seed":7,"temperature":2}'),
            *"--agents 6 --turns 1 --systems 6 --system-words 20 --task-words 10".split(),
            *"--answer-tokens 12 --context 512".split(),
        ]
        done = self.replay(*args, "--embed-backend", embedder.url, "--same-meaning", "0")
        (pairs,) = self.report()["comparisons"]
        self.assertEqual(pairs["pairs"], 6)
        self.assertGreater(len(pairs["parted"]), 0)
        for pair in pairs["parted"]:
            self.assertNotEqual(pair["reason"], "no_similarity", pair)
            self.assertLessEqual(pair["equal_tokens"], 12)
            self.assertIn(pair["start_a"], ("computed", "live"))
        self.assertIn("one and other part:", done.stdout)
        self.assertIn("class", done.stdout)
        with open(self.path("report.html"), encoding="utf-8") as file:
            self.assertIn("Answers to the same prompts", file.read())

    def test_what_tokid_records_is_replayed(self):
        llama = self.start_llama(slots=2, context=1024, name="recorded")
        trace = self.path("recorded.jsonl")
        tokid = self.start_tokid(backend=llama.url, options=["--record", trace])
        bodies = [
            {
                "messages": [{"role": "user", "content": harness.words(20, number) + " \n \u00e4"}],
                "max_tokens": 3,
                "temperature": 0,
                "stream": number % 2 == 0,
            }
            for number in range(4)
        ]
        for body in bodies:
            self.assertEqual(
                harness.post(tokid.url + "/v1/chat/completions", body).status, 200
            )
        native = {"prompt": harness.words(15, 9), "n_predict": 3, "temperature": 0}
        self.assertEqual(harness.post(tokid.url + "/completion", native).status, 200)
        tokid.stats_when(lambda s: s["recorded_total"] == 5, "all are recorded")
        with open(trace, encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
        self.assertEqual([line["body"] for line in lines], [*bodies, native])
        self.replay("--target", f"one={llama.url}", "--target", f"two={tokid.url}", "--workload", trace)
        report = self.report()
        self.assertEqual(report["settings"]["kind"], "bodies")
        for arm in report["arms"]:
            figures = arm["runs"][0]["figures"]
            self.assertEqual((figures["requests"], figures["failures"]), (5, 0))

    def test_a_recorded_file_on_a_target_that_runs_already(self):
        llama = self.start_llama(slots=2, context=1024)
        trace = self.path("bodies.jsonl")
        with open(trace, "w", encoding="utf-8") as file:
            for number in range(4):
                messages = [{"role": "user", "content": harness.words(30, number % 2)}]
                body = {"messages": messages, "temperature": 0, "max_tokens": 3}
                record = {"path": "/v1/chat/completions", "at_ms": number * 10, "body": body}
                file.write(json.dumps(record) + "\n")
        self.replay(
            *("--target", f"one={llama.url}", "--workload", trace),
            *"--repeat 2 --arrival recorded --speed 2 --at-once 4".split(),
        )
        (arm,) = self.report()["arms"]
        self.assertEqual(len(arm["runs"]), 2)
        self.assertEqual(arm["spread"]["requests"], {"min": 4, "median": 4, "max": 4})
        self.assertEqual(arm["runs"][1]["figures"]["failures"], 0)
        self.assertGreater(arm["runs"][1]["figures"]["oracle_tokens"], 0)


class NothingLeft(ReplayCase):
    def start_long_run(self):
        self.errors = open(self.path("stderr"), "w+", encoding="utf-8")
        self.addCleanup(self.errors.close)
        child = subprocess.Popen(
            self.command(
                *self.arm("toki"),
                *"--agents 50 --turns 50 --system-words 20 --task-words 5 --context 4096".split(),
            ),
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )
        self.addCleanup(child.kill)

        def under_way():
            with open(self.path("stderr"), encoding="utf-8") as file:
                measured = re.search(r"[1-9]\d* of 2500 requests", file.read())
                return measured or child.poll() is not None

        harness.wait_until(under_way, "requests are on their way")
        self.assertIsNone(child.poll())
        self.assertTrue(processes_with(self.mark))
        return child

    def test_an_interrupted_run_writes_what_it_has_and_stops_its_children(self):
        child = self.start_long_run()
        child.send_signal(signal.SIGINT)
        out, _ = child.communicate(timeout=harness.START_LIMIT_S)
        self.assertEqual(child.returncode, 130)
        self.assertIn("INTERRUPTED", out)
        self.assert_nothing_left()
        report = self.report()
        self.assertTrue(report["interrupted"])
        figures = report["arms"][0]["runs"][0]["figures"]
        self.assertGreater(figures["requests"], 0)
        self.assertLess(figures["requests"], 2500)
        self.assertEqual(figures["failures"], 0)
        self.assertGreater(figures["oracle_tokens"], 0)

    def test_children_die_with_a_killed_run(self):
        child = self.start_long_run()
        child.kill()
        child.communicate(timeout=harness.START_LIMIT_S)
        harness.wait_until(
            lambda: not processes_with(self.mark), "the children ended with their parent"
        )


class Faults(ReplayCase):
    def assert_one_line(self, text, *more, status=1):
        done = self.replay(*more, status=status)
        # On a busy machine it may have time to tell how far it is.
        lines = [
            line
            for line in done.stderr.strip().splitlines()
            if not re.search(r"\d+ of \d+ requests$", line)
        ]
        self.assertEqual(len(lines), 1, done.stderr)
        self.assertTrue(lines[0].startswith("toki-replay: "), done.stderr)
        self.assertIn(text, lines[0])
        self.assertEqual(done.stdout, "")

    def test_an_unreachable_target(self):
        self.assert_one_line("x: cannot reach http://", "--target", "x=http://127.0.0.1:1")

    def test_a_server_that_does_not_start(self):
        self.assert_one_line("llama-server ended with", *self.arm("direct", "--no-such-option"))

    def test_a_program_that_does_not_exist(self):
        done = self.replay(*self.arm("direct"), "--llama", "/no/llama-server", status=1)
        self.assertIn("direct: cannot start /no/llama-server", done.stderr)

    def test_half_a_trace(self):
        trace = self.path("half.jsonl")
        line = json.dumps({"session_id": "s", "timestamp": 1, "input": "x"})
        with open(trace, "w", encoding="utf-8") as file:
            file.write(line + "\n" + line[:-5])
        self.assert_one_line(
            f"{trace}:2: the line breaks off", *self.arm("direct"), "--workload", trace
        )

    def test_lines_that_are_no_json(self):
        trace = self.path("lines.jsonl")
        with open(trace, "w", encoding="utf-8") as file:
            file.write(json.dumps({"prompt": "x"}) + "\n\nGET / HTTP/1.1\n")
        self.assert_one_line(f"{trace}:3: no JSON", *self.arm("direct"), "--workload", trace)

    def test_a_model_that_is_none(self):
        model = self.path("no-model.gguf")
        with open(model, "w", encoding="utf-8") as file:
            file.write("this is no model")
        self.assert_one_line(
            "direct: llama-server ended with", *self.arm("direct"), "--model", model
        )

    def test_embeddings_that_nobody_makes(self):
        self.assert_one_line(
            "--embed-backend http://127.0.0.1:1: ",
            *self.arm("direct"),
            *("--embed-backend", "http://127.0.0.1:1"),
        )

    def test_bad_options(self):
        self.assert_one_line(
            "only one of them", "--hash-embedding", "--embed-backend", "http://h:1", status=2
        )
        self.assert_one_line("nothing to measure", status=2)
        self.assert_one_line("no such file", "--arm", "a", "--model", "/no", status=2)
        self.assert_one_line("--restart", "--target", "a=http://h:1", "--restart", status=2)

    def test_a_server_that_does_not_know_the_model(self):
        class Handler(http.server.BaseHTTPRequestHandler):
            def answer(self, status, body):
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def do_GET(self):
                self.answer(200, {"data": []})

            def do_POST(self):
                self.answer(404, {"error": {"message": "model 'm' not found"}})

            def log_message(self, *_):
                pass

        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            url = f"http://127.0.0.1:{server.server_address[1]}"
            line = "x: the first 4 requests failed: 404: model 'm' not found"
            self.assert_one_line(line, "--target", f"x={url}", "--target", f"y={url}")
            server.shutdown()
        self.assertEqual(self.report()["arms"][1]["runs"], [], "the run ended with the first arm")

    def test_prompts_that_do_not_fit_are_counted_and_named(self):
        trace = self.path("long.jsonl")
        with open(trace, "w", encoding="utf-8") as file:
            for count in (2000, 5, 6):
                messages = [{"role": "user", "content": harness.words(count, count)}]
                body = {"messages": messages, "max_tokens": 2}
                file.write(json.dumps(body) + "\n")
        done = self.replay(
            *self.arm("direct"), *("--workload", trace, "--context", "512"), status=1
        )
        self.assertIn("direct: 1 failed: 400: ", done.stderr)
        figures = self.report()["arms"][0]["runs"][0]["figures"]
        self.assertEqual((figures["requests"], figures["failures"]), (3, 1))


if __name__ == "__main__":
    harness.main()
