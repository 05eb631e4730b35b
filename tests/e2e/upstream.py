"""llama-server dies and comes back, or runs with settings that do not suit toki; tokid starts it
itself.
"""

import os
import signal

import harness
from harness import get, post, words

harness.require_parts()


def chat(tokid, seed, **more):
    return post(
        tokid.url + "/v1/chat/completions",
        {
            "model": "m",
            "temperature": 0,
            "max_tokens": 8,
            **more,
            "messages": [
                {"role": "system", "content": words(150, "system")},
                {"role": "user", "content": words(20, seed)},
            ],
        },
    )


def children_of(pid):
    """Process ids of a process's children, whichever of its threads started them."""
    found = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children") as file:
            found += [int(child) for child in file.read().split()]
    return found


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Restart(harness.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.llama = cls.start_llama(slots=2, context=16384)
        cls.tokid = cls.start_tokid(backend=cls.llama.url)

    def test_a_killed_and_restarted_server_serves_again_and_nothing_is_promised(self):
        chat(self.tokid, "before").ok()
        hit = chat(self.tokid, "before")
        self.assertEqual(hit.headers["x-toki-cache"], "hit", hit.headers)
        restarts = self.tokid.stats()["upstream_restarts_total"]

        self.llama.kill()
        down = chat(self.tokid, "before")
        self.assertIn(down.status, (502, 503), down.body)
        self.assertIn(down.json()["error"]["type"], ("upstream_error", "unavailable_error"))
        if down.status == 503:
            self.assertIn("retry-after", down.headers)

        self.llama.start()
        self.tokid.wait_ready()
        again = chat(self.tokid, "before")
        self.assertEqual(again.ok()["timings"]["cache_n"], 0)
        self.assertEqual(
            (again.headers["x-toki-reused"], again.headers["x-toki-cache"]), ("0", "miss")
        )
        after = chat(self.tokid, "before")
        self.assertEqual(after.headers["x-toki-cache"], "hit", after.headers)
        stats = self.tokid.settled_stats()
        self.assertEqual(stats["upstream_restarts_total"], restarts + 1)
        self.assertEqual(stats["integrity_faults_total"], 0)

    def test_a_quick_restart_between_two_requests_is_noticed(self):
        chat(self.tokid, "quick").ok()
        restarts = self.tokid.stats()["upstream_restarts_total"]
        self.llama.kill()
        self.llama.start()
        harness.wait_until(
            lambda: chat(self.tokid, "quick").status == 200, "a request is served again"
        )
        self.tokid.stats_when(
            lambda s: s["upstream_restarts_total"] == restarts + 1, "the restart is counted"
        )
        self.tokid.wait_ready()
        chat(self.tokid, "quick").ok()  # the trial after a restart may have taken the slot
        self.assertEqual(chat(self.tokid, "quick").headers["x-toki-cache"], "hit")

    def test_a_server_that_dies_in_mid_stream_ends_that_stream_and_no_other_request(self):
        body = {"prompt": words(40, "dies"), "n_predict": 16000, "ignore_eos": True, "stream": True}
        with harness.Stream(self.tokid.url + "/completion", body) as stream:
            events = stream.events()
            next(events)
            self.llama.kill()
            with self.assertRaises((harness.http.client.IncompleteRead, ConnectionError)):
                for _ in events:
                    pass
        self.llama.start()
        self.tokid.wait_ready()
        chat(self.tokid, "after the death").ok()
        stats = self.tokid.settled_stats()
        self.assertGreaterEqual(stats["requests_failed"], 1)
        self.assertEqual((stats["slots_busy"], stats["slots_fenced"]), (0, 0))


class Defaults(harness.TestCase):
    def test_a_server_that_clears_idle_slots_is_noticed_and_served_without_pinning(self):
        llama = self.start_llama(slots=None)
        tokid = self.start_tokid(backend=llama.url)
        stats = tokid.stats()
        self.assertEqual(stats["pinning"], 0, stats)
        self.assertRegex(
            tokid.process.read_log(),
            r"-np|--no-cache-idle-slots",
            "the log does not name the flags that help",
        )
        for turn in range(3):
            for agent in range(3):
                answer = chat(tokid, f"agent {agent}")
                answer.ok()
                self.assertEqual(answer.headers["x-toki-slot"], "any", answer.headers)
                self.assertLessEqual(
                    int(answer.headers["x-toki-reused"]), answer.json()["timings"]["cache_n"]
                )
        stats = tokid.settled_stats()
        self.assertEqual((stats["requests_completed"], stats["integrity_faults_total"]), (9, 0))

    def test_a_server_with_its_own_cache_and_slots_that_stay_serves_as_well(self):
        llama = self.start_llama(slots=None, extra=["-np", "2", "-c", "8192"], name="own-cache")
        tokid = self.start_tokid(backend=llama.url, name="tokid-own-cache")
        for turn in range(2):
            for agent in range(4):
                answer = chat(tokid, f"agent {agent}")
                self.assertLessEqual(
                    int(answer.headers["x-toki-reused"]), answer.ok()["timings"]["cache_n"]
                )
        self.assertEqual(tokid.settled_stats()["integrity_faults_total"], 0)

    def test_tokid_may_start_before_the_server(self):
        llama = self.start_llama(slots=2, name="late")
        llama.kill()
        tokid = self.start_tokid(backend=llama.url, name="tokid-early", ready=False)
        health = get(tokid.url + "/toki/health")
        self.assertEqual(health.status, 503)
        self.assertIn(health.json()["status"], ("down", "loading"))
        llama.start()
        tokid.wait_ready()
        chat(tokid, "late").ok()
        self.assertEqual(tokid.stats()["upstream_restarts_total"], 0)


class Supervisor(harness.TestCase):
    def start(self, name, options=()):
        command = [harness.find_llama_server(), "-m", os.environ["TOKI_MODEL"], "-c", "8192"]
        tokid = self.start_tokid(command=command, name=name, options=options)
        self.addCleanup(self.kill_left_overs, tokid)
        return tokid

    def kill_left_overs(self, tokid):
        # A supervisor that fails must not leave its server running behind the test.
        for pid in getattr(tokid, "children", ()):
            if alive(pid):
                os.kill(pid, signal.SIGKILL)

    def children(self, tokid):
        tokid.children = children_of(tokid.process.child.pid)
        return tokid.children

    def test_it_starts_the_server_with_the_flags_toki_needs_and_serves(self):
        tokid = self.start("serves")
        pids = self.children(tokid)
        self.assertEqual(len(pids), 1, "tokid has one child")
        self.assertEqual(tokid.stats()["pinning"], 1)
        chat(tokid, "supervised").ok()
        self.assertEqual(chat(tokid, "supervised").headers["x-toki-cache"], "hit")
        self.assertEqual(tokid.stop(), 0)
        self.assertFalse(
            any(alive(pid) for pid in pids), "llama-server is still there after tokid has ended"
        )

    def test_a_killed_server_is_started_again(self):
        tokid = self.start("restarts")
        chat(tokid, "x").ok()
        first = self.children(tokid)
        os.kill(first[0], signal.SIGKILL)
        harness.wait_until(
            lambda: self.children(tokid) and tokid.children != first, "a new llama-server runs"
        )
        tokid.stats_when(
            lambda s: s["upstream_restarts_total"] == 1, "the restart is counted", limit_s=60
        )
        tokid.wait_ready()
        answer = chat(tokid, "x")
        answer.ok()
        self.assertEqual(answer.headers["x-toki-reused"], "0")
        pids = self.children(tokid)
        self.assertEqual(tokid.stop(), 0)
        self.assertFalse(
            any(alive(pid) for pid in pids), "llama-server is still there after tokid has ended"
        )

    def test_sigterm_while_the_server_generates_leaves_nothing_behind(self):
        tokid = self.start("busy", options=["--drain-ms", "200"])
        pids = self.children(tokid)
        body = {"prompt": words(40, "busy"), "n_predict": 8000, "ignore_eos": True, "stream": True}
        with harness.Stream(tokid.url + "/completion", body) as stream:
            next(stream.events())
            self.assertEqual(tokid.stop(), 0)
        self.assertFalse(
            any(alive(pid) for pid in pids), "llama-server is still there after tokid has ended"
        )


if __name__ == "__main__":
    harness.main()
