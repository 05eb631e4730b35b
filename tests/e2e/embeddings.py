"""Embeddings by a real llama-server that was started with --embeddings: segments, limits, and what
a server without them answers.
"""

import json
import math
import os
import subprocess

import harness
from harness import post, words

harness.require_parts()

CONTEXT, BATCH = 512, 128


def dot(a, b):
    return sum(x * y for x, y in zip(a, b))


class Embeddings(harness.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.llama = cls.start_llama(
            slots=None,
            extra=["--embeddings", "--pooling", "mean", "-np", "1", "-c", str(CONTEXT)]
            + ["-b", str(BATCH), "-ub", str(BATCH)],
        )

    def embed(self, *texts, url=None):
        """What the library makes of the texts, one after the other."""
        done = subprocess.run(
            [os.environ["TOKI_EMBED_TEXT"], url or self.llama.url],
            input="".join(json.dumps(text) + "\n" for text in texts),
            capture_output=True,
            text=True,
            timeout=harness.ANSWER_LIMIT_S,
            check=True,
        )
        return [json.loads(line) for line in done.stdout.splitlines()]

    def server_vector(self, ids):
        answer = post(self.llama.url + "/v1/embeddings", {"input": ids}).ok()
        return answer["data"][0]["embedding"]

    def mean(self, text):
        """The same by hand: segments that fit, overlapping by an eighth, weighted by length."""
        ids, start = self.tokens(text, special=False), self.tokens("", special=True)
        window = CONTEXT - len(start)
        while window + len(start) > BATCH:
            window //= 2
        total, at = None, 0
        while True:
            part = ids[at : at + window]
            vector = [value * len(part) for value in self.server_vector(start + part)]
            total = vector if total is None else [a + b for a, b in zip(total, vector)]
            if at + window >= len(ids):
                break
            at += window - window // 8
        length = math.sqrt(dot(total, total))
        return [value / length for value in total]

    def tokens(self, text, special):
        body = {"content": text, "add_special": special, "parse_special": True}
        return post(self.llama.url + "/tokenize", body).ok()["tokens"]

    def test_a_short_text_has_the_servers_own_vector(self):
        text = 'the cat "read"\n a story'
        (made,) = self.embed(text)
        wanted = self.server_vector(self.tokens(text, special=True))
        self.assertEqual(len(made["vector"]), len(wanted))
        self.assertAlmostEqual(dot(made["vector"], wanted), 1, places=4)

    def test_a_text_longer_than_the_batch_is_the_mean_of_its_segments(self):
        text = words(500, "long")
        ids = self.tokens(text, special=False)
        self.assertGreater(len(ids), CONTEXT)  # longer than the context, too
        first, again, other = self.embed(text, text, words(500, "other"))
        self.assertNotIn("error", first)
        self.assertEqual(first, again)
        self.assertNotEqual(first["vector"], other["vector"])
        self.assertAlmostEqual(math.sqrt(dot(first["vector"], first["vector"])), 1, places=4)
        self.assertAlmostEqual(dot(first["vector"], self.mean(text)), 1, places=4)

    def test_a_text_of_many_contexts_is_embedded_too(self):
        (made,) = self.embed(words(8000, "very long"))
        self.assertNotIn("error", made)

    def test_embeddings_of_one_server_have_one_identity(self):
        first, second = self.embed("one", words(300, "two"))
        self.assertEqual(first["identity"], second["identity"])

    def test_a_server_without_embeddings_is_told_apart(self):
        plain = self.start_llama(slots=1, name="plain")
        errors = [made["error"] for made in self.embed("a", "b", url=plain.url)]
        self.assertEqual(errors, ["unsupported", "unsupported"])


if __name__ == "__main__":
    harness.main()
