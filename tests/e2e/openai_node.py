"""The official openai client for Node.js works through tokid: starts the servers and runs
openai_node.cjs.
"""

import os
import shutil
import subprocess

import harness

harness.require_parts()
NODE = shutil.which("node")
MODULES = os.path.join(harness.parts(), "node", "node_modules")
if not NODE:
    harness.skip("no Node.js (tests/support/packages.sh --clients installs it)")
if not os.path.isdir(os.path.join(MODULES, "openai")):
    harness.skip(
        "no openai package for Node.js "
        "(tests/run.sh installs it when npm's registry can be reached)"
    )


class Client(harness.TestCase):
    def test_the_client_for_node(self):
        llama = self.start_llama(slots=4, context=16384)
        tokid = self.start_tokid(backend=llama.url)
        ended = subprocess.run(
            [
                NODE,
                "--test",
                os.path.join(os.path.dirname(os.path.abspath(__file__)), "openai_node.cjs"),
            ],
            env={**os.environ, "TOKI_URL": tokid.url, "LLAMA_URL": llama.url, "NODE_PATH": MODULES},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )
        print(ended.stdout, ended.stderr, flush=True)
        self.assertEqual(ended.returncode, 0, "some of the tests above failed")
        stats = tokid.settled_stats()
        self.assertEqual(
            (stats["tokenization_mismatch_total"], stats["integrity_faults_total"]), (0, 0)
        )


if __name__ == "__main__":
    harness.main()
