"""Exact mode with a real llama-server: greedy answers, and the probability of each of their tokens, are
to the last bit those of a llama-server that computes every prompt whole, alone, and without cache;
and still much of the prompts is reused.
"""

import os

import harness
from harness import in_parallel, post, words

harness.require_parts()

GENERATED = 64


def cold(url, body):
    return post(url, {**body, "cache_prompt": False}).ok()


def said(answer):
    """The text, and how likely each token was: other rounding shows there first."""
    choice = answer["choices"][0]
    return choice["message"]["content"], [t["logprob"] for t in choice["logprobs"]["content"]]


class Exact(harness.TestCase):
    def start(self, batch=None, slots=2, model=None, options=()):
        name = self.id().rsplit(".", 1)[1]
        sizes = ["-b", str(batch), "-ub", str(batch)] if batch else []
        self.plain = self.start_llama(
            slots=1, name=name + "-plain", model=model, extra=sizes
        )
        self.llama = self.start_llama(
            slots=slots, name=name + "-llama", model=model, extra=sizes
        )
        self.options = ["--slot-dir", self.llama.slot_folder, "--exact", *options]
        self.options += ["--exact-batch", str(batch)] if batch else []
        self.tokid = self.start_tokid(
            backend=self.llama.url, options=self.options, name=name + "-tokid"
        )

    def body(self, messages, **more):
        body = {"messages": messages, "temperature": 0, "max_tokens": GENERATED, **more}
        return {"ignore_eos": True, "logprobs": True, **body}

    def bodies(self, talks, turns, system, user):
        """Conversations, turn by turn: each is asked with the cold answers as its history. Two and
        two share a system message; the last turn edits the question before.
        """
        histories = [
            [{"role": "system", "content": words(system, f"system {talk // 2}")}]
            for talk in range(talks)
        ]
        bodies, answers = [], []
        for turn in range(turns):
            for talk, history in enumerate(histories):
                if turn == turns - 1:
                    del history[-2:]
                question = words(user + 7 * talk + 5 * turn, f"talk {talk} turn {turn}")
                history.append({"role": "user", "content": question})
                bodies.append(self.body(list(history)))
                answers.append(cold(self.plain.url + "/v1/chat/completions", bodies[-1]))
                text = answers[-1]["choices"][0]["message"]["content"]
                history.append({"role": "assistant", "content": text})
        return bodies, [said(answer) for answer in answers]

    def ask(self, body):
        return post(self.tokid.url + "/v1/chat/completions", body).ok()

    def check(self, answers, wanted, batch):
        self.assertEqual([said(answer) for answer in answers], wanted)
        reused = [answer["timings"]["cache_n"] for answer in answers]
        self.assertEqual([n for n in reused if n % batch], [])
        self.assertEqual(self.tokid.stats()["integrity_faults_total"], 0)
        return reused

    def test_answers_are_those_of_a_cold_server(self):
        self.start(batch=64)
        bodies, wanted = self.bodies(talks=6, turns=8, system=150, user=40)
        answers = [self.ask(body) for body in bodies]
        reused = self.check(answers, wanted, 64)
        self.assertGreater(len([n for n in reused if n > 0]), 30)
        prompts = sum(answer["usage"]["prompt_tokens"] for answer in answers)
        self.assertGreater(sum(reused), prompts / 2)
        stats = self.tokid.settled_stats()
        self.assertGreater(stats["restores_total"], 10)
        # Asked at once they run one after the other; and again after a restart, from disk.
        self.tokid.stop()
        self.tokid = self.start_tokid(
            backend=self.llama.url,
            options=self.options,
            name="again",
            data_dir=self.tokid.data_dir,
        )
        answers = in_parallel([lambda body=body: self.ask(body) for body in bodies[-20:]])
        self.assertGreater(min(self.check(answers, wanted[-20:], 64)), 0)

    def test_the_servers_own_batch_is_the_default(self):
        self.start()
        bodies, wanted = self.bodies(talks=2, turns=3, system=900, user=60)
        reused = self.check([self.ask(body) for body in bodies], wanted, 512)
        self.assertEqual(reused[0], 0)
        self.assertGreater(min(reused[1:]), 0)

    def test_the_batch_of_a_server_that_tokid_starts_is_read(self):
        command = [harness.find_llama_server(), "-m", os.environ["TOKI_MODEL"], "-t", "1"]
        for number, (sizes, batch) in enumerate(
            ((["-b", "256", "-ub", "96"], 256), (["--ubatch-size", "128"], 128))
        ):
            tokid = self.start_tokid(
                command=[*command, "-c", "2048", "-np", "1", *sizes],
                options=["--exact", "--remote-states", "0"],
                name=f"starts-{number}",
            )
            said = f"multiples of {batch} tokens"
            tokid.process.wait_for(lambda: said in tokid.process.read_log(), said)
            tokid.stop()

    def test_other_apis_are_cold_or_exact_as_well(self):
        self.start(batch=64)
        text = words(300, "text")
        prompt = self.body([{"role": "user", "content": text}])
        self.ask(prompt)
        native = {"prompt": text, "n_predict": 16, "temperature": 0, "cache_prompt": False}
        for body in (native, {**native, "cache_prompt": True}):
            wanted = post(self.plain.url + "/completion", native).ok()["content"]
            self.assertEqual(post(self.tokid.url + "/completion", body).ok()["content"], wanted)
        # Nothing can be said of caches there, so the slots are erased first.
        message = {"max_tokens": 16, "messages": prompt["messages"], "temperature": 0}
        answers = [post(at.url + "/v1/messages", message).ok() for at in (self.plain, self.tokid)]
        self.assertEqual(answers[0]["content"], answers[1]["content"])
        self.assertEqual(answers[1]["usage"].get("cache_read_input_tokens", 0), 0)

    def test_a_client_that_leaves_disturbs_nobody(self):
        self.start(batch=64)
        bodies, wanted = self.bodies(talks=2, turns=1, system=150, user=40)
        body = {**bodies[0], "max_tokens": 3000, "stream": True}
        with harness.Stream(self.tokid.url + "/v1/chat/completions", body) as stream:
            next(stream.events())
        answers = [self.ask(body) for body in bodies]
        self.check(answers, wanted, 64)

    def test_without_states_that_can_be_cut_everything_is_computed(self):
        model = os.environ.get("TOKI_GEMMA3", "")
        if not os.path.exists(model):
            self.skipTest("TOKI_GEMMA3 names no file")
        self.start(batch=64, model=model)
        bodies, wanted = self.bodies(talks=2, turns=2, system=150, user=40)
        reused = self.check([self.ask(body) for body in bodies], wanted, 64)
        self.assertEqual(sum(reused), 0)
        self.assertIn("every prompt is computed whole", self.tokid.process.read_log())
        self.assertEqual(os.listdir(self.llama.slot_folder), [])


if __name__ == "__main__":
    harness.main()
