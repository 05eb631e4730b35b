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

# Why a gap is there, by what its lines say: the first that matches. The rest is listed as "other".
KINDS = [
]


def folder_of(file):
    return str(Path(file).parent)


def short(name):
    """Without parameters, templates' arguments and the namespace: Engine::begin."""
    name = re.sub(r"\[abi:\w+\]|\(anonymous namespace\)::", "", name)
    depth, kept = 0, []
    for char in name:
        if char in "<(" and not (char == "(" and depth == 0 and "".join(kept).endswith("operator")):
            depth += 1
        elif char in ">)":
            depth = max(0, depth - 1)
        elif depth == 0:
            kept.append(char)
    words = "".join(kept).replace(" const", "").replace("[actor]", "").split()
    return words[-1].replace("toki::", "").rstrip("&") if words else name


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
    return {name for name in names if re.match(r"toki(::|_)", name)}


def code_lines(file):
    return [line for line in file["lines"] if not line.get("gcovr/noncode") and not line.get("gcovr/excluded")]


def uncalled(files, libraries):
    """Public functions without a call, and exported ones of which nothing was measured."""
    calls = defaultdict(int)
    public = exported(libraries)
    for file in files:
        for function in file["functions"]:
            calls[function["name"]] += function["execution_count"]
            if file["file"].startswith("include/"):
                public.add(function["name"])
    return sorted(name for name in public if not calls[name]), len(public)


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("json")
    options.add_argument("libraries", nargs="+")
    options.add_argument("--least", type=float, default=90, help="percent of lines")
    options.add_argument("--write", metavar="PAGE")
    given = options.parse_args()
    files = json.loads(Path(given.json).read_text())["files"]

    rows = defaultdict(lambda: [0, 0])
    for file in files:
        lines = code_lines(file)
        for row in (rows[folder_of(file["file"])], rows["all"]):
            row[0] += sum(line["count"] > 0 for line in lines)
            row[1] += len(lines)
    for name in sorted(rows, key=lambda name: (name == "all", name)):
        run, known = rows[name]
        print(f"{name:20} {run:6} of {known:6} lines {100 * run / known:6.1f} %")

    names, count = uncalled(files, given.libraries)
    print(f"public functions: {count}, not called: {len(names)}")
    for name in names:
        print("  " + name)
    run, known = rows["all"]
    if 100 * run < given.least * known:
        sys.exit(f"coverage: less than {given.least:g} % of the lines are run")
    if names:
        sys.exit("coverage: public functions that no test calls")


main()
