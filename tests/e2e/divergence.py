"""The cosines in tests/data/divergence.jsonl are what a real embedding model says, through the
library's own embedder and a real llama-server. TOKI_MINILM names the model, made by
tests/support/make_minilm_gguf.py; without it this is skipped.
"""

import json
import os
import pathlib
import subprocess

import harness

harness.require_parts()
if not os.path.exists(os.environ.get("TOKI_MINILM", "")):
    harness.skip("TOKI_MINILM names no model (tests/support/make_minilm_gguf.py makes it)")

SET = pathlib.Path(__file__).parent.parent / "data" / "divergence.jsonl"
NAME = "all-MiniLM-L6-v2"


class Divergence(harness.TestCase):
    def test_the_stored_cosines_are_the_models(self):
        llama = self.start_llama(
            slots=None,
            model=os.environ["TOKI_MINILM"],
            extra=["--embeddings", "--pooling", "mean", "-np", "1", "-c", "512"],
        )
        pairs = [json.loads(line) for line in SET.read_text().splitlines()]
        pairs = [pair for pair in pairs if "cosine" in pair]
        texts = [text for pair in pairs for text in (pair["a"], pair["b"])]
        done = subprocess.run(
            [os.environ["TOKI_EMBED_TEXT"], llama.url],
            input="".join(json.dumps(text) + "\n" for text in texts),
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
        vectors = [json.loads(line)["vector"] for line in done.stdout.splitlines()]
        for at, pair in enumerate(pairs):
            cosine = sum(x * y for x, y in zip(vectors[2 * at], vectors[2 * at + 1]))
            with self.subTest(a=pair["a"], b=pair["b"]):
                self.assertAlmostEqual(cosine, pair["cosine"][NAME], delta=0.01)


if __name__ == "__main__":
    harness.main()
