"""A real llama-server behind a Unix socket, and clients that come over TLS and over a Unix socket."""

import json
import os
import re
import shutil
import signal
import subprocess

import harness
from harness import words

harness.require_parts()
for program in ("curl", "openssl"):
    if not shutil.which(program):
        harness.skip(f"no {program}")


class Transports(harness.TestCase):
    def curl(self, *arguments, body=None):
        command = ["curl", "-sS", "--max-time", "60", "-w", "\n%{http_code}", *arguments]
        if body is not None:
            command += ["-H", "Content-Type: application/json", "--data-binary", "@-"]
        ended = subprocess.run(command, input=body, capture_output=True, timeout=90)
        text, _, status = ended.stdout.decode().rpartition("\n")
        return int(status or 0), text, ended.stderr.decode()

    def test_tls_and_unix_sockets_on_both_sides(self):
        certificate, key = (os.path.join(self.folder, name) for name in ("cert.pem", "key.pem"))
        subprocess.run(
            "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
            "-subj /CN=localhost -addext subjectAltName=DNS:localhost,IP:127.0.0.1".split()
            + ["-keyout", key, "-out", certificate],
            check=True,
            capture_output=True,
        )
        clients, server = (os.path.join(self.folder, name) for name in ("tokid.sock", "llama.sock"))
        arguments = [os.environ["TOKI_TOKID"], "--data-dir", os.path.join(self.folder, "data")]
        arguments += ["--listen", "127.0.0.1:0", "--listen", "unix:" + clients]
        arguments += ["--tls-cert", certificate, "--tls-key", key, "--backend", "unix:" + server]
        arguments += ["--", harness.find_llama_server(), "-m", os.environ["TOKI_MODEL"]]
        arguments += ["-t", "1", "-np", "2", "-c", "4096"]
        tokid = harness.Process(arguments, self.folder, "tokid")
        self.addCleanup(tokid.close)
        url = tokid.wait_for(
            lambda: re.search(r"tokid listening on (https://\S+)", tokid.read_out()), "it listens"
        )[1]
        ways = {
            "tls": ("--cacert", certificate, url),
            "tls 1.2": ("--tls-max", "1.2", "--cacert", certificate, url),
            "unix": ("--unix-socket", clients, "http://localhost"),
        }

        def ask(way, path, *more, body=None):
            *options, base = ways[way]
            return self.curl(*options, *more, base + path, body=body)

        def ready():
            return all(ask(way, "/toki/health")[0] == 200 for way in ways)

        tokid.wait_for(ready, "it is ready over each way")
        body = {"max_tokens": 4, "messages": [{"role": "user", "content": words(100, "ways")}]}
        for number, way in enumerate(ways):
            status, text, why = ask(way, "/v1/chat/completions", body=json.dumps(body).encode())
            self.assertEqual(status, 200, (way, text, why))
            answer = json.loads(text)
            cached = answer["timings"]["cache_n"]
            self.assertEqual(cached, answer["usage"]["prompt_tokens"] - 1 if number else 0, way)
            stream = json.dumps({**body, "stream": True}).encode()
            status, text, why = ask(way, "/v1/chat/completions", "-N", body=stream)
            self.assertEqual(status, 200, (way, why))
            self.assertTrue(text.rstrip().endswith("data: [DONE]"), (way, text[-200:]))
        # Old protocols, strangers and plain HTTP get nothing.
        self.assertNotEqual(self.curl("--tls-max", "1.1", "--cacert", certificate, url)[2], "")
        self.assertIn("certificate", self.curl(url)[2])
        status, text, _ = self.curl(url.replace("https:", "http:") + "/toki/health")
        self.assertEqual(status, 400, text)

        # llama-server leaves its socket behind when it is killed, and is started again.
        pid = int(re.search(r"as process (\d+)", tokid.read_log())[1])
        os.kill(pid, signal.SIGKILL)
        tokid.wait_for(lambda: tokid.read_log().count("as process") == 2, "it is started again")
        tokid.wait_for(ready, "it serves again")
        self.assertEqual(tokid.stop(), 0)
        self.assertFalse(os.path.exists(clients))


harness.main()
