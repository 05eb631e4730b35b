"""The examples that need a model: one talks to a llama-server, one has llama.cpp in its own process."""

import os
import re
import subprocess

import harness

harness.require_parts()
EXAMPLES = os.environ["TOKI_EXAMPLES"]
RUN = os.path.join(harness.parts(), "llama-server", "run")  # through the loader that libllama needs
MOST = 1.02  # tokens computed, over those of an oracle that knows every prompt but no answer
SAME = 0.9  # of the answers: where another batch shape rounds differently a few part
COLD_TURNS = 20


class Asio(harness.TestCase):
    def test_the_second_request_computes_one_token(self):
        llama = self.start_llama(slots=2, context=1024)
        done = subprocess.run(
            [os.path.join(EXAMPLES, "asio"), llama.url, harness.words(60, 1)],
            capture_output=True,
            text=True,
            timeout=harness.ANSWER_LIMIT_S,
            check=False,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        found = re.fullmatch(
            r"cache_n (\d+) of (\d+) tokens\ncache_n (\d+) of (\d+) tokens\n", done.stdout
        )
        self.assertTrue(found, done.stdout)
        cached, length, cached_again, length_again = map(int, found.groups())
        self.assertLess(cached, 20)  # the chat by which the program learns of the server's start token
        self.assertEqual((cached_again, length_again), (length - 1, length))


class InProcess(harness.TestCase):
    def setUp(self):
        self.program = os.path.join(EXAMPLES, "in_process")
        if not os.path.exists(self.program):
            self.skipTest("no libllama with headers when this was configured")
        # Computing a token of the tiny model takes hardly longer than restoring it: then the engine's
        # choice depends on how fast the machine happens to be.
        self.model = os.path.join(self.folder, "model.gguf")
        size = "--layers 4 --embd 512 --heads 8 --ffn 1024 --seed 1".split()
        subprocess.run(
            [os.environ["TOKI_MAKE_GGUF"], *size, self.model], stdout=subprocess.DEVNULL, check=True
        )
        self.turns = subprocess.run(
            [os.environ["TOKI_PRINT_TURNS"]], capture_output=True, text=True, check=True
        ).stdout.splitlines(keepends=True)

    def play(self, turns, folder, *options):
        """Reused tokens and text of each answer, and computed over oracle."""
        command = [self.program, self.model, os.path.join(self.folder, folder), *options]
        if os.path.exists(RUN):
            command.insert(0, RUN)
        done = subprocess.run(
            command,
            input="".join(turns).encode(),
            capture_output=True,
            timeout=harness.ANSWER_LIMIT_S,
            check=False,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        # Answers of random weights hold anything.
        *answers, last, _ = done.stdout.decode(errors="replace").split("\n")
        answers = [re.search(r"(\d+) reused: (.*)$", line, re.S).groups() for line in answers]
        ratio = re.fullmatch(r"computed \d+, oracle \d+, ratio (\d+\.\d+)", last)
        print(f"{self.id()} {folder}: {last}")
        return [(int(reused), text) for reused, text in answers], float(ratio[1])

    def test_agents_compute_each_prefix_about_once_and_answer_the_same(self):
        answers, ratio = self.play(self.turns, "kept")
        self.assertEqual(len(answers), sum("\tuser\t" in turn for turn in self.turns))
        self.assertLessEqual(ratio, MOST)
        # The next run finds all that this one kept.
        again, ratio = self.play(self.turns, "kept")
        self.assertLessEqual(ratio, 0.1)
        # Without reuse the same answers are computed in other batches.
        cold, ratio = self.play(self.turns[:COLD_TURNS], "cold", "--cold")
        self.assertGreater(ratio, 2)
        self.assertEqual({reused for reused, _ in cold}, {0})
        for warm in (answers, again):
            equal = sum(a[1] == b[1] for a, b in zip(warm, cold))
            self.assertGreaterEqual(equal, SAME * len(cold))


if __name__ == "__main__":
    harness.main()
