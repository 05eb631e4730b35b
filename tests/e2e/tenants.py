"""Two tenants before a real llama-server: neither what it is told nor the time that it waits tells one
of them whether the other sent the same prompt.

In each round the first tenant sends a prompt, and then the second one sends either the same or another of
the same kind, which a coin decides. The two sorts of rounds must look alike: the time to the first token,
tokens said to be cached and the numbers in the headers by Mann-Whitney tests, words in the headers by
permutation tests. With --share-tenants the same rounds must be told apart, or the test would be none.

    tenants.py [--rounds N] [--tokens N]     200 and 1000 for the full run
"""

import argparse
import json
import math
import os
import random
import statistics
import sys
import time

import harness
from harness import Stream, post, words

harness.require_parts()

CERTAIN = 0.001  # below it two samples are held to differ

KEYS = {"alice": "alice-key", "bob": "bob-key"}
HEADERS = ("x-toki-cache", "x-toki-reused", "x-toki-known", "x-toki-source", "x-toki-slot",
           "x-toki-reason")


def mann_whitney(a, b):
    """Two-sided p that both come from one distribution; normal approximation with ties."""
    both = sorted([(value, 0) for value in a] + [(value, 1) for value in b])
    ranks, ties, at = [0.0, 0.0], 0.0, 0
    while at < len(both):
        end = at
        while end < len(both) and both[end][0] == both[at][0]:
            end += 1
        for _, which in both[at:end]:
            ranks[which] += (at + 1 + end) / 2
        ties += (end - at) ** 3 - (end - at)
        at = end
    n, m = len(a), len(b)
    total = n + m
    spread = n * m / 12 * (total + 1 - ties / (total * (total - 1)))
    if spread <= 0:
        return 1.0
    away = abs(ranks[0] - n * (n + 1) / 2 - n * m / 2)
    return math.erfc(max(away - 0.5, 0) / math.sqrt(spread) / math.sqrt(2))


def permutation(a, b, seed=1, times=5000):
    """p that values (of any kind) are spread alike over both samples."""
    rng = random.Random(seed)
    values, n = list(a) + list(b), len(a)

    def distance(order):
        counts = {}
        for at, value in enumerate(order):
            counts[value] = counts.get(value, 0) + (1 / n if at < n else -1 / (len(order) - n))
        return sum(abs(count) for count in counts.values())

    seen = distance(values)
    as_far = 0
    for _ in range(times):
        rng.shuffle(values)
        as_far += distance(values) >= seen - 1e-9
    return (as_far + 1) / (times + 1)


class Round:
    def __init__(self, arm, ttft_ms, cached, headers):
        self.arm, self.ttft_ms, self.cached, self.headers = arm, ttft_ms, cached, headers


class Tenants(harness.TestCase):
    rounds = 30
    tokens = 300

    def start(self, name, options=()):
        keys = os.path.join(self.folder, f"{name}-keys")
        with open(keys, "w") as file:
            file.write("".join(f"{who} {key}\n" for who, key in KEYS.items()))
        os.chmod(keys, 0o600)
        self.llama = type(self).start_llama(slots=3, name=f"{name}-llama")
        self.tokid = type(self).start_tokid(
            backend=self.llama.url,
            options=["--slot-dir", self.llama.slot_folder, "--api-keys", keys, *options],
            name=name,
        )

    @staticmethod
    def as_tenant(who):
        return {"Authorization": f"Bearer {KEYS[who]}"}

    def body(self, seed):
        text = f"{seed} {words(self.tokens * 3 // 4, seed)}"
        return {
            "model": "m",
            "messages": [{"role": "user", "content": text}],
            "temperature": 0,
            "max_tokens": 2,
        }

    def ask(self, who, body):
        """(ms to the first token, tokens said to be cached, headers) of a streamed answer."""
        cached, first = None, None
        begun = time.monotonic()
        stream = Stream(
            self.tokid.url + "/v1/chat/completions",
            {**body, "stream": True, "stream_options": {"include_usage": True}},
            headers=self.as_tenant(who),
        )
        with stream:
            self.assertEqual(stream.status, 200)
            for data in stream.events():
                event = {} if data == "[DONE]" else json.loads(data)
                delta = (event.get("choices") or [{}])[0].get("delta") or {}
                if first is None and delta.get("content"):
                    first = (time.monotonic() - begun) * 1000
                cached = (event.get("timings") or {}).get("cache_n", cached)
        told = tuple(stream.headers.get(name) for name in HEADERS)
        return first, cached, told

    def play(self, count, arms=("same", "other")):
        rng = random.Random("toki coin")
        order = [arms[i % len(arms)] for i in range(count)]
        rng.shuffle(order)
        played = []
        for number, arm in enumerate(order):
            asked = self.body(f"round {number} asked")
            if arm != "nothing":
                sent = asked if arm == "same" else self.body(f"round {number} other")
                self.ask("alice", sent)
            played.append(Round(arm, *self.ask("bob", asked)))
        return played

    @staticmethod
    def one_header(name, a, b):
        values = [[r.headers[HEADERS.index(name)] for r in arm] for arm in (a, b)]
        if name in ("x-toki-reused", "x-toki-known"):
            return mann_whitney(*([int(value) for value in arm] for arm in values))
        return permutation(*values)

    def figures(self, title, played, arms=("same", "other")):
        """The p values of the two arms, said as well."""
        a, b = ([r for r in played if r.arm == arm] for arm in arms)
        p = {
            "ttft": mann_whitney([r.ttft_ms for r in a], [r.ttft_ms for r in b]),
            "cached": mann_whitney([r.cached for r in a], [r.cached for r in b]),
            "headers": min(1.0, len(HEADERS) * min(self.one_header(i, a, b) for i in HEADERS)),
        }
        for arm, rounds in zip(arms, (a, b)):
            times = sorted(r.ttft_ms for r in rounds)
            quartiles = statistics.quantiles(times, n=4)
            print(
                f"{title}: {arm}: {len(rounds)} rounds, ttft ms min {times[0]:.1f} "
                f"quartiles {quartiles[0]:.1f} {quartiles[1]:.1f} {quartiles[2]:.1f}, "
                f"cached {sorted(set(r.cached for r in rounds))}",
                file=sys.stderr,
            )
        print(f"{title}: p {({k: round(v, 5) for k, v in p.items()})}", file=sys.stderr)
        return p

    def test_isolated_tenants_cannot_tell(self):
        self.start("isolated")
        played = self.play(self.rounds)
        p = self.figures("isolated", played)
        for name, value in p.items():
            self.assertGreater(value, CERTAIN, name)
        for one in played:
            # Its own requests share the chat's opening with it, and nothing else.
            self.assertLess(one.cached, 16)
            self.assertLess(int(one.headers[1]), 16)

    def test_isolated_tenants_are_told_nothing_of_each_others_work(self):
        # Not part of what must hold (the machine is shared, and it is slower while others use it): said
        # only, where many rounds are played.
        if self.rounds < 100:
            self.skipTest("only with --rounds 100 and more")
        self.start("idle")
        arms = ("same", "nothing")
        self.figures("against an idle tenant", self.play(self.rounds // 2, arms), arms)

    def test_tenants_that_share_can_tell(self):
        self.start("shared", ["--share-tenants"])
        played = self.play(min(self.rounds, 40))
        p = self.figures("shared", played)
        for name in ("ttft", "cached", "headers"):
            self.assertLess(p[name], CERTAIN, name)

    def test_anthropic_messages(self):
        command = [harness.find_llama_server(), "-m", os.environ["TOKI_MODEL"], "-t", "1"]
        command += ["-np", "2", "-c", "8192"]
        keys = os.path.join(self.folder, "messages-keys")
        with open(keys, "w") as file:
            file.write("alice alice-key\nbob bob-key\n")
        tokid = type(self).start_tokid(
            options=["--api-keys", keys], command=command, name="messages"
        )
        body = {k: v for k, v in self.body("messages").items() if k != "temperature"}

        def reused(who):
            answer = post(tokid.url + "/v1/messages", body, headers={"x-api-key": KEYS[who]})
            return answer.ok()["usage"]["cache_read_input_tokens"]

        self.assertEqual(reused("alice"), 0)
        self.assertGreater(reused("alice"), 100)
        self.assertEqual(reused("bob"), 0)
        self.assertGreater(reused("bob"), 100)


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("--rounds", type=int, default=Tenants.rounds)
    options.add_argument("--tokens", type=int, default=0)
    given, rest = options.parse_known_args()
    Tenants.rounds = given.rounds
    Tenants.tokens = given.tokens or (1000 if given.rounds >= 200 else Tenants.tokens)
    sys.argv[1:] = rest
    harness.main()
