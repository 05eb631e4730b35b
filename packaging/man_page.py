"""Makes the manual page tokid(1) of docs/options.md: man_page.py OPTIONS.md VERSION > tokid.1"""

import re
import sys


def inline(text):
    """Code and stars become fonts, links their text; a dot that begins a line is none of roff's."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`([^`]*)`", r"\\fB\1\\fR", text)
    text = re.sub(r"\*\*([^*]*)\*\*", r"\\fB\1\\fR", text)
    return "\\&" + text if text[:1] in (".", "'") else text


def cells(line):
    parts = re.split(r"(?<!\\)\|", line.strip().strip("|"))
    return [part.strip().replace("\\\\e|", "|") for part in parts]


def row(line):
    head, *rest = cells(line)
    if re.fullmatch(r"[-\s]*", head):
        return []
    if len(rest) == 4:  # of the options
        default, values, reloaded, told = rest
        rest = [f"Default: {default}." if default not in ("", "none") else "",
                f"Values: {values}." if values else "", "SIGHUP changes it." if reloaded else "", told]
    elif len(rest) == 2 and rest[0] and rest[0] != "none":
        rest[0] = f"Default: {rest[0]}."
    elif len(rest) == 2:
        rest = rest[1:]
    return [".TP", inline(head), inline(" ".join(part for part in rest if part))]


def page(lines, version):
    out = [
        f'.TH TOKID 1 "" "toki {version}" "User Commands"',
        ".SH NAME",
        "tokid \\- recycles the KV caches of a llama\\-server",
        ".SH SYNOPSIS",
    ]
    in_table = False
    paragraph = []  # code may go over the end of a line
    for line in [*(line.rstrip("\n") for line in lines[1:] if not line.startswith("<!--")), ""]:
        plain = line != "" and not line.startswith(("## ", "|", "    "))
        if plain:
            paragraph.append(line)
            continue
        if paragraph:
            out.append(inline(" ".join(paragraph)))
            paragraph = []
        if line.startswith("## "):
            out.append(f'.SH "{inline(line[3:].upper())}"')
        elif line.startswith("|"):
            out += row(line) if in_table else []  # the first row is the head
        elif line.startswith("    "):
            out += [".nf", "\\fB" + inline(line[4:]) + "\\fR", ".fi"]
        else:
            described = ".SH DESCRIPTION" in out or len(out) <= 5
            out.append(".PP" if described else ".SH DESCRIPTION")
        in_table = line.startswith("|")
    return out


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        print("\n".join(page(file.readlines(), sys.argv[2])))


main()
