"""Agents that share system prompts, more of them than slots: on every kind of model each distinct
prefix is computed about once, over restarts too, and the texts are those of the server alone.
"""

import os
import random
import re

import harness
from harness import get, post, words

harness.require_parts()
for name in ("TOKI_GEMMA3", "TOKI_LFM2"):
    if not os.path.exists(os.environ.get(name, "")):
        harness.skip(f"{name} names no file")

AGENTS, SYSTEMS, TURNS, SLOTS = 10, 3, 4, 4
MOST = 1.05  # tokens computed, over those of an oracle that computes each prefix of a prompt once
SAME = 0.85  # of the texts: one that another batch shape rounds differently changes later prompts


class Agents(harness.TestCase):
    def computed(self):
        page = get(self.llama.url + "/metrics").body.decode()
        return int(float(re.search(r"^llamacpp:prompt_tokens_total (\S+)", page, re.M)[1]))

    def tokens(self, messages):
        prompt = post(self.llama.url + "/apply-template", {"messages": messages}).ok()["prompt"]
        body = {"content": prompt, "add_special": True, "parse_special": True}
        return post(self.llama.url + "/tokenize", body).ok()["tokens"]

    def play(self, url, restart=lambda: None):
        """The texts, and the prompts that were sent, in one order for all arms."""
        chats = [
            [{"role": "system", "content": words(250, f"system {agent % SYSTEMS}")}]
            for agent in range(AGENTS)
        ]
        order = [agent for agent in range(AGENTS) for _ in range(TURNS)]
        random.Random(7).shuffle(order)
        texts, prompts = [], []
        for at, agent in enumerate(order):
            if at == len(order) // 2:
                url = restart() or url
            chat = chats[agent]
            chat.append({"role": "user", "content": words(30, f"agent {agent} at {len(chat)}")})
            prompts.append(list(chat))
            body = {"model": "m", "messages": chat, "temperature": 0, "max_tokens": 12}
            answer = post(url + "/v1/chat/completions", body).ok()
            texts.append(answer["choices"][0]["message"]["content"])
            chat.append({"role": "assistant", "content": texts[-1]})
        return texts, prompts

    def check(self, model=None, restarts=False, most=MOST):
        self.llama = self.start_llama(slots=SLOTS, name=self.id(), model=model, context=2048)
        alone, _ = self.play(self.llama.url)
        self.llama.start()  # fresh, for the other arm
        options = ["--slot-dir", self.llama.slot_folder]
        tokid = self.start_tokid(backend=self.llama.url, options=options, name=self.id() + "-tokid")
        begun, total = self.computed(), 0

        def restart():
            nonlocal begun, total, tokid
            if not restarts:
                return None
            total += self.computed() - begun
            tokid.stop()
            self.llama.start()
            tokid = self.start_tokid(
                backend=self.llama.url,
                options=options,
                name=self.id() + "-again",
                data_dir=tokid.data_dir,
            )
            begun = self.computed()
            return tokid.url

        texts, prompts = self.play(tokid.url, restart)
        total += self.computed() - begun
        prefixes = {()}
        for prompt in prompts:
            ids = self.tokens(prompt)
            prefixes.update(hash(tuple(ids[:end])) for end in range(1, len(ids) + 1))
        oracle = len(prefixes) - 1
        print(f"{self.id()}: {total} computed, {total / oracle:.3f} x oracle")
        self.assertLessEqual(total, most * oracle)
        equal = sum(a == b for a, b in zip(texts, alone))
        self.assertGreaterEqual(equal, SAME * len(texts))

    # This model computes some dozen tokens sooner than a state of them is read: it may do so.
    def test_llama(self):
        self.check(most=1.3)

    def test_llama_with_both_started_again_in_the_middle(self):
        self.check(restarts=True, most=1.3)

    def test_sliding_window(self):
        self.check(model=os.environ["TOKI_GEMMA3"])

    def test_hybrid(self):
        self.check(model=os.environ["TOKI_LFM2"])


if __name__ == "__main__":
    harness.main()
