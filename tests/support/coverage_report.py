#!/usr/bin/env python3
"""What gcovr measured, as tests/coverage.sh shows it: line coverage per folder, public functions that
nobody calls, and with --write a page of what is not run, function by function.

A function is public when a static library given here defines it with default visibility, or when it
stands in a header below include/.
"""
import argparse
import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

# Why lines are not run, by what they and the two lines above them say: the first that matches.
KINDS = [
    ("defence", r"TOKI_CHECK|unreachable|return \"unknown\"|default:|catch \(",
     "cannot happen while the rest is right, or only when memory runs out"),
    ("system", r"errno|error_code|\bec\b|file_error|SQLite|sqlite3?_|::(open|stat|chmod|fsync|socket|mmap|madvise)",
     "a call of the operating system, of SQLite or of OpenSSL has to fail there"),
    ("timing", r"stopping_|cancel|timed_out|deadline|expire|limit",
     "another thread or peer has to do something just then"),
    ("backend", r"Errc::(backend|unsupported|unavailable)|\berror\(\)|\.error|Error\{",
     "a backend, or a file, that answers wrongly in one more way"),
]
OTHER = ("other", "a rare case of the function's own work")


def folder_of(file):
    return str(Path(file).parent)


def short(name):
    """Without return type, parameters, template arguments and namespaces of ours."""
    name = re.sub(r"\[[^\]]*\]|\(anonymous namespace\)::|::\{lambda.*", "", name)
    depth, kept = 0, ""
    for char in name:
        if char in "<(":
            depth += 1
        elif char in ">)":
            depth = max(0, depth - 1)
        elif depth == 0:
            kept += char
    words = [word for word in kept.split() if word not in ("const", "&", "&&", ".actor", ".destroy")]
    return re.sub(r"^(toki::)?(http::)?", "", words[-1]) if words else name


def exported(libraries):
    """Functions with default visibility, demangled. What the standard library exports is left out."""
    table = subprocess.run(["readelf", "--symbols", "--wide", *libraries], check=True, text=True,
                           capture_output=True).stdout
    mangled = set()
    for line in table.splitlines():
        word = line.split()
        if len(word) == 8 and word[3] == "FUNC" and word[5] == "DEFAULT" and word[4] != "LOCAL" and word[6] != "UND":
            mangled.add(word[7])
    names = subprocess.run(["c++filt"], input="\n".join(sorted(mangled)), check=True, text=True,
                           capture_output=True).stdout.split("\n")
    return {name for name in names if re.match(r"toki(::|_)", name) and "std::deque<" not in name.split("(")[0]}


def code_lines(file):
    return [line for line in file["lines"] if not line.get("gcovr/noncode") and not line.get("gcovr/excluded")]


def uncalled(files, libraries):
    """Public functions without a call, and how many there are. What is inline counts once for all the
    types that it is made for."""
    calls = defaultdict(int)
    inline = defaultdict(lambda: [0, ""])
    for file in files:
        for function in file["functions"]:
            calls[function["name"]] += function["execution_count"]
            if file["file"].startswith("include/"):
                entry = inline[file["file"], function["lineno"]]
                entry[0] += function["execution_count"]
                entry[1] = function["name"]
    known = {name for _, name in inline.values()}
    own = exported(libraries) - known
    names = [name for name in own if not calls[name]] + [name for count, name in inline.values() if not count]
    return sorted(names), len(own) + len(inline)


class Gap:
    """Lines of one function that are not run."""

    def __init__(self, function, lines, text):
        self.function, self.lines = function, lines
        first = lines[0]
        about = "\n".join(text[max(0, first - 3):lines[-1]])
        self.kind = next((kind for kind, pattern, _ in KINDS if re.search(pattern, about)), OTHER[0])
        self.begins = text[first - 1].strip()


def gaps_of(root, file):
    text = (root / file["file"]).read_text().splitlines()
    starts = sorted((function["lineno"], function["name"]) for function in file["functions"]
                    if "{lambda" not in function["name"])
    gaps = []
    run = []

    def end():
        if run:
            before = [name for at, name in starts if at <= run[0]]
            gaps.append(Gap(short(before[-1]) if before else "-", run[:], text))
            run.clear()

    for line in code_lines(file):
        if line["count"]:
            end()
        else:
            run.append(line["line_number"])
    end()
    return gaps


def table_of(rows):
    lines = ["| folder | lines | run | |", "|---|---:|---:|---:|"]
    for name, (run, known) in rows:
        lines.append(f"| {name} | {known} | {run} | {100 * run / known:.1f} % |")
    return lines


def page(root, files, rows):
    gaps = {file["file"]: gaps_of(root, file) for file in files}
    count = defaultdict(int)
    for found in gaps.values():
        for gap in found:
            count[gap.kind] += len(gap.lines)
    lines = ["# What no test runs", "",
             "Written by `tests/coverage.sh --write`; not edited by hand. The lines of the library that the unit,",
             "model, net and fuzz corpus tests leave out, with the first of each group. Tests on a real llama-server,",
             "which run some of them, are not counted.", ""]
    lines += table_of(rows)
    lines += ["", "| kind | lines | why |", "|---|---:|---|"]
    for kind, why in [(kind, why) for kind, _, why in KINDS] + [OTHER]:
        lines.append(f"| {kind} | {count[kind]} | {why} |")
    lines += ["", "| file | function | lines | kind | begins with |", "|---|---|---:|---|---|"]
    for name in sorted(gaps):
        for gap in gaps[name]:
            begins = gap.begins.replace("|", "\\|")
            # Without its first folder: the page may be older than a file's name.
            lines.append(f"| {name.split('/', 1)[1]} | `{gap.function}` | {len(gap.lines)} | {gap.kind} | `{begins}` |")
    return "\n".join(lines) + "\n"


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("json")
    options.add_argument("libraries", nargs="+")
    options.add_argument("--least", type=float, default=90, help="percent of lines")
    options.add_argument("--write", metavar="PAGE")
    options.add_argument("--gaps", action="store_true", help="prints every line that is not run")
    given = options.parse_args()
    root = Path(__file__).resolve().parents[2]
    files = json.loads(Path(given.json).read_text())["files"]

    counts = defaultdict(lambda: [0, 0])
    for file in files:
        lines = code_lines(file)
        for row in (counts[folder_of(file["file"])], counts["all"]):
            row[0] += sum(line["count"] > 0 for line in lines)
            row[1] += len(lines)
    rows = sorted(counts.items(), key=lambda row: (row[0] == "all", row[0]))
    for name, (run, known) in rows:
        print(f"{name:20} {run:6} of {known:6} lines {100 * run / known:6.1f} %")
    if given.gaps:
        for file in files:
            text = (root / file["file"]).read_text().splitlines()
            for line in code_lines(file):
                if not line["count"]:
                    print(f"{file['file']}:{line['line_number']}: {text[line['line_number'] - 1]}")
    if given.write:
        (root / given.write).write_text(page(root, files, rows))

    names, count = uncalled(files, given.libraries)
    print(f"{count} public functions, not called: {len(names)}")
    for name in names:
        print("  " + name)
    run, known = counts["all"]
    if 100 * run < given.least * known:
        sys.exit(f"coverage: less than {given.least:g} % of the lines are run")
    if names:
        sys.exit("coverage: public functions that no test calls")


main()
