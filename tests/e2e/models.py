"""The tiny models behave like the three kinds of models there are: what a slot reuses of what it
holds when the next prompt extends it, and when it parts from it before the end.

This says what llama-server does, not toki; toki has to work with all of it. What files of these
models hold, the library must not take for rows of tokens.
"""

import os
import subprocess

import harness
from harness import post, words

harness.require_parts()
for name in ("TOKI_GEMMA3", "TOKI_LFM2", "TOKI_STATE_TOOL"):
    if not os.path.exists(os.environ.get(name, "")):
        harness.skip(f"{name} names no file")

HELD = 321  # tokens in the slot
KEPT = 301  # of them, where the next prompt parts earlier
PROMPTS = 6


class Live(harness.TestCase):
    def tokens(self, text):
        body = {"content": text, "add_special": True, "parse_special": True}
        return post(self.llama.url + "/tokenize", body).ok()["tokens"]

    def complete(self, tokens, slot, length=24, cache=True):
        body = {
            "prompt": tokens,
            "id_slot": slot,
            "n_predict": length,
            "temperature": 0,
            "cache_prompt": cache,
        }
        answer = post(self.llama.url + "/completion", body).ok()
        return answer["content"], answer["timings"]["cache_n"]

    def check_file(self, held, understood):
        """Is a file of so many tokens understood by the library?"""
        self.complete(held, 0, 0, cache=False)
        saved = post(self.llama.url + "/slots/0?action=save", {"filename": "x.bin"}).ok()
        self.assertEqual(saved["n_saved"], len(held))
        path = os.path.join(self.llama.slot_folder, "x.bin")
        tool = [os.environ["TOKI_STATE_TOOL"], "info", path]
        done = subprocess.run(tool, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0 if understood else 3, done.stderr)
        self.assertEqual("unsupported" in done.stderr, not understood, done.stderr)

    def check(self, append, rewind, understood=False, model=None, extra=()):
        self.llama = self.start_llama(slots=2, name=self.id(), model=model, extra=extra)
        texts = []
        for at in range(PROMPTS):
            held = self.tokens(words(400, f"held {at}"))[:HELD]
            more = self.tokens(words(30, f"more {at}"))[1:]
            other = self.tokens(words(30, f"other {at}"))[1:]
            if other[0] == held[KEPT]:
                other = other[1:]
            for prompt, reused in ((held + more, append), (held[:KEPT] + other, rewind)):
                self.complete(held, 0, 0, cache=False)
                text, cache_n = self.complete(prompt, 0)
                self.assertEqual(cache_n, reused)
                cold, cache_n = self.complete(prompt, 1, cache=False)
                self.assertEqual(cache_n, 0)
                texts.append((text, cold))
        self.assertGreater(
            len({cold for _, cold in texts}), PROMPTS, "the answers do not depend on the prompt"
        )
        # Not all: another shape of the batch may round differently.
        equal = sum(text == cold for text, cold in texts)
        self.assertGreater(equal, PROMPTS, texts)
        for length in (2, 20, HELD):  # shorter and longer than the window
            self.check_file(held[:length], understood)

    def test_llama(self):
        self.check(append=HELD, rewind=KEPT, understood=True)

    def test_sliding_window(self):
        self.check(append=HELD, rewind=KEPT, model=os.environ["TOKI_GEMMA3"])

    def test_sliding_window_kept_in_full(self):
        model = os.environ["TOKI_GEMMA3"]
        self.check(append=HELD, rewind=KEPT, model=model, extra=("--swa-full",))

    def test_hybrid(self):
        self.check(append=HELD, rewind=0, model=os.environ["TOKI_LFM2"])


if __name__ == "__main__":
    harness.main()
