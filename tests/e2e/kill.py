"""kill -9 of tokid and of llama-server at random instants under load.

After each: nothing half-written is left or used, what was recorded is still matched, and answers are
those of a llama-server that was never disturbed.

    TOKI_KILL_ROUNDS   so many rounds, instead of what fits into 25 s
    TOKI_KILL_SEED     of the random instants; printed at the start
"""

import http.client
import os
import random
import threading
import time

import harness
from harness import get, post, words

harness.require_parts()

CI_SECONDS = 25
FEWEST_ROUNDS = 5
TALKS, TURNS = 8, 3
CLEAR = 0.02  # by which the best token must be ahead of the next, as a logarithm
WORTH = 60  # tokens; shorter beginnings may not be worth a restore


class Load:
    """Clients that send what they like until they are stopped or their server is gone."""

    def __init__(self, url, prompts, wanted, seed, clients=3):
        self.url, self.prompts, self.wanted = url, prompts, wanted
        self.stop, self.answers, self.wrong = False, 0, []
        self.threads = [
            threading.Thread(target=self.run, args=(random.Random(seed * 100 + i),), daemon=True)
            for i in range(clients)
        ]
        for thread in self.threads:
            thread.start()

    def run(self, rng):
        while not self.stop:
            at = rng.randrange(len(self.prompts))
            try:
                answer = post(self.url + "/v1/chat/completions", request(self.prompts[at]))
                text = answer.json()["choices"][0]["message"]["content"]
            except (OSError, http.client.HTTPException):
                return
            except (AssertionError, KeyError):
                if answer.status == 200:
                    self.wrong.append(answer.body)
                return
            self.answers += 1
            if text != self.wanted[at]:
                self.wrong.append(f"prompt {at}: {text!r} instead of {self.wanted[at]!r}")

    def join(self):
        self.stop = True
        for thread in self.threads:
            thread.join()


def request(messages, **more):
    return {"model": "m", "messages": messages, "temperature": 0, "max_tokens": 8, **more}


class Kill(harness.TestCase):
    def setUp(self):
        self.slot_dir = os.path.join(self.folder, "slots")
        os.makedirs(self.slot_dir)
        self.data_dir = os.path.join(self.folder, "data")
        self.llama = type(self).start_llama(
            slots=2, name="llama", extra=["--slot-save-path", self.slot_dir, "--cache-ram", "0"]
        )
        self.starts = 0
        self.listening, self.ready = [], []  # seconds since the start, of each tokid

    def start_toki(self):
        self.starts += 1
        began = time.monotonic()
        self.tokid = harness.Tokid(
            self.folder,
            backend=self.llama.url,
            options=["--slot-dir", self.slot_dir, "--probe-interval-ms", "100"],
            name=f"tokid-{self.starts}",
            data_dir=self.data_dir,
            ready=False,
        )
        self.addCleanup(self.tokid.close)
        self.listening.append(time.monotonic() - began)
        self.tokid.wait_ready()
        self.ready.append(time.monotonic() - began)

    def talks(self):
        """Prompts of several turns, and what an undisturbed server answers to each. How a prompt is
        cut into batches moves a logarithm of a probability by some thousandths, with toki or
        without; prompts of which that could change the answer are left out."""
        prompts, wanted = [], []
        for talk in range(TALKS):
            messages = [
                {"role": "system", "content": words(150, f"system {talk % 2}")},
                {"role": "user", "content": words(60, f"question {talk}")},
            ]
            for turn in range(TURNS):
                more = {"cache_prompt": False, "logprobs": True, "top_logprobs": 2}
                body = request(messages, **more)
                answer = post(self.llama.url + "/v1/chat/completions", body).ok()
                (choice,) = answer["choices"]
                tops = [token["top_logprobs"] for token in choice["logprobs"]["content"]]
                if min(first["logprob"] - second["logprob"] for first, second in tops) >= CLEAR:
                    prompts.append(list(messages))
                    wanted.append(choice["message"]["content"])
                messages += [
                    {"role": "assistant", "content": choice["message"]["content"]},
                    {"role": "user", "content": words(40, f"next {talk} {turn}")},
                ]
        self.assertGreater(len(prompts), TALKS)
        return prompts, wanted

    def entries(self):
        return get(self.tokid.url + "/toki/entries").ok()["entries"]

    def recorded(self):
        """Which prompts are in the index and how much of each is stored; None when either may
        still be on its way to the disk."""
        try:
            entries, stats = self.entries(), self.tokid.stats()
        except (OSError, http.client.HTTPException):
            return None
        return None if stats["index_queued"] else {
            entry["id"]: entry["stored_tokens"] for entry in entries if entry["id"]
        }

    def check_files(self):
        # llama-server may still be writing what a killed tokid asked for; of a killed trial it may
        # stay a minute.
        def clean():
            return all(name.startswith("toki-trial") for name in os.listdir(self.slot_dir))

        harness.wait_until(clean, "no state file is left", 20)
        store = os.path.join(self.data_dir, "kv")
        self.assertEqual([n for n in os.listdir(store) if n.endswith(".tmp")], [])
        self.assertEqual(os.listdir(os.path.join(store, "quarantine")), [])
        aside = [n for n in os.listdir(self.data_dir) + os.listdir(store) if "aside" in n]
        self.assertEqual(aside, [])

    def check_recorded(self, before):
        """A prompt may have gone on meanwhile, under its id; it is never shorter."""
        if not before:
            return
        after = {entry["id"]: entry["stored_tokens"] for entry in self.entries()}
        for prompt, tokens in before.items():
            self.assertIn(prompt, after)
            self.assertGreaterEqual(after[prompt], tokens)

    def check_answer(self, rng, prompts, wanted):
        at = rng.randrange(len(prompts))
        look = post(self.tokid.url + "/toki/lookup", request(prompts[at])).ok()
        answer = post(self.tokid.url + "/v1/chat/completions", request(prompts[at])).ok()
        self.assertEqual(answer["choices"][0]["message"]["content"], wanted[at])
        if look["reused_tokens"] >= WORTH:
            self.reused += 1
            self.assertEqual(answer["timings"]["cache_n"], look["reused_tokens"])

    def kill_toki(self, rng):
        self.tokid.process.kill()
        if rng.random() < 0.2:  # and once more while it starts
            self.tokid = harness.Tokid(
                self.folder,
                backend=self.llama.url,
                options=["--slot-dir", self.slot_dir],
                name=f"tokid-{self.starts}-brief",
                data_dir=self.data_dir,
                ready=False,
            )
            self.addCleanup(self.tokid.close)
            time.sleep(rng.random() * 0.3)
            self.tokid.process.kill()
        self.start_toki()

    def kill_llama(self):
        seen = self.tokid.stats()["upstream_restarts_total"]
        self.llama.kill()
        self.llama.start()
        self.tokid.stats_when(
            lambda s: s["upstream_restarts_total"] > seen, "the restart is seen", 60
        )
        self.tokid.wait_ready()

    def test_killed_at_random_instants_nothing_is_wrong_and_nothing_recorded_is_lost(self):
        seed = int(os.environ.get("TOKI_KILL_SEED", "0")) or random.randrange(1, 1 << 30)
        rounds = int(os.environ.get("TOKI_KILL_ROUNDS", "0"))
        print(f"TOKI_KILL_SEED={seed}", flush=True)
        rng = random.Random(seed)
        prompts, wanted = self.talks()
        self.start_toki()
        began, done, kills, answers, compared = time.monotonic(), 0, [0, 0], 0, 0
        self.reused = 0
        while (
            done < rounds
            if rounds
            else done < FEWEST_ROUNDS or time.monotonic() - began < CI_SECONDS
        ):
            load = Load(self.tokid.url, prompts, wanted, seed + done)
            time.sleep(rng.random() * 1.2)  # the instant of the kill: this is what is random
            before = self.recorded()
            time.sleep(rng.random() * 0.1)
            victim = 0 if rng.random() < 0.75 else 1
            if victim == 0:
                self.tokid.process.kill()
                load.join()
                self.kill_toki(rng)
            else:
                self.llama.kill()
                load.join()
                self.kill_llama()
                self.tokid.settled_stats()
            kills[victim] += 1
            answers += load.answers
            compared += len(before or {})
            self.assertEqual(load.wrong, [], f"round {done}")
            if victim == 0:
                self.check_files()
            self.check_recorded(before)
            self.check_answer(rng, prompts, wanted)
            stats = self.tokid.stats()
            for name in ("integrity_faults_total", "kv_quarantined_total", "index_set_aside_total"):
                self.assertEqual(stats[name], 0, name)
            done += 1

        def spread(values):
            values = sorted(values)
            return f"p50 {values[len(values) // 2]:.2f} s, max {values[-1]:.2f} s"

        print(
            f"{done} rounds in {time.monotonic() - began:.0f} s: tokid killed {kills[0]} times, "
            f"llama-server {kills[1]}; {answers} answers under load, all as from an undisturbed "
            f"server; {compared} recorded prompts compared, none lost; {self.reused} restored or "
            f"continued afterwards. tokid listens after {spread(self.listening)}, is ready "
            f"after {spread(self.ready)}",
            flush=True,
        )
        self.assertGreater(answers, 0)
        if done >= 20:
            self.assertGreater(compared, 0)
            self.assertGreater(self.reused, 0)


if __name__ == "__main__":
    harness.main()
