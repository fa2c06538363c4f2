#!/usr/bin/env python3
"""Bring the generated parts of README.md and docs/performance.md and the charts of docs/plots up to date, or check that
they are.

A generated part lies between two comments:

    <!-- begin file examples/NAME.cpp -->      the file, as a code block
    <!-- begin output info --markdown -->      what `fp8attn info --markdown` prints
    <!-- begin speed bench/results/NAME.json --> a section with the figures of `fp8attn bench --json NAME.json`; nothing
                                               where there is no such file
    <!-- begin bench NAME -->                  tables of the rows in bench/results and of bench/peers.json: see PARTS
    <!-- begin bench-section OP TITLE -->      the same for the rows of an operation (or "grouped-heads", "batches"),
                                               under a title; nothing where there are no such rows
    <!-- end -->

Usage: tools/update_docs.py [--check] [--build DIR]     (DIR: a build with every option at its default, and CUDA)
"""

import argparse
import difflib
import pathlib
import re
import subprocess
import sys

import bench_tables
import bench_tables_other

ROOT = pathlib.Path(__file__).resolve().parent.parent
PART = re.compile(
    r"(?P<begin><!-- begin (?P<kind>file|output|speed|bench|bench-section) (?P<argument>[^\n]+?) -->\n).*?"
    r"(?P<end><!-- end -->)", re.S)
LANGUAGES = {".cpp": "cpp", ".txt": "cmake"}
PARTS = {
    "runs": bench_tables.runs,
    "prefill": bench_tables.prefill,
    "peers-prefill": bench_tables_other.peers_prefill,
    "peers-accuracy": bench_tables_other.peers_accuracy,
    "peers-mla": bench_tables_other.peers_mla,
}


def section(argument):
    op, _, title = argument.partition(" ")
    parts = {"grouped-heads": bench_tables.grouped_heads, "batches": bench_tables_other.batches}
    body = parts[op]() if op in parts else bench_tables_other.operation(op)
    return f"## {title}\n\n{body}" if body else ""


def content(match, build):
    argument = match["argument"]
    if match["kind"] == "speed":
        return bench_tables.readme_speed(ROOT / argument)
    if match["kind"] == "bench":
        return PARTS[argument]()
    if match["kind"] == "bench-section":
        return section(argument)
    if match["kind"] == "file":
        path = ROOT / argument
        return f"```{LANGUAGES.get(path.suffix, '')}\n{path.read_text(encoding='utf-8').strip()}\n```\n"
    command = [str(build / "fp8attn"), *argument.split()]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip() + "\n"


def generate(path, build):
    """The text of a document with its parts up to date."""
    old = path.read_text(encoding="utf-8")

    def replacement(match):
        body = content(match, build).strip("\n")
        return match["begin"] + (body + "\n" if body else "") + match["end"]

    new, count = PART.subn(replacement, old)
    begun = old.count("<!-- begin ")
    if count != begun or count == 0:
        sys.exit(f"{path.relative_to(ROOT)}: {begun} parts begin, {count} are complete")
    return new


def write_or_check(path, new, check):
    """True where the file is as it should be; `new` None: it should not exist."""
    name = str(path.relative_to(ROOT))
    old = path.read_text(encoding="utf-8") if path.exists() else None
    if new == old:
        print(f"{name}: up to date")
        return True
    if check:
        sys.stdout.writelines(difflib.unified_diff((old or "").splitlines(True), (new or "").splitlines(True), name,
                                                   "generated"))
        return False
    if new is None:
        path.unlink()
    else:
        path.parent.mkdir(exist_ok=True)
        path.write_text(new, encoding="utf-8")
    print(f"{name}: updated")
    return True


def main():
    parser = argparse.ArgumentParser(description="Update the generated parts of README.md and docs/performance.md.")
    parser.add_argument("--check", action="store_true", help="change nothing; fail where something is out of date")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build", help="build directory (default: build)")
    arguments = parser.parse_args()

    wanted = {path: None for path in (ROOT / "docs" / "plots").glob("*.svg")}
    wanted |= bench_tables.plots()
    wanted |= {path: generate(path, arguments.build) for path in (ROOT / "README.md", ROOT / "docs" / "performance.md")}
    good = [write_or_check(path, new, arguments.check) for path, new in wanted.items()]
    if not all(good):
        sys.exit("out of date: run tools/update_docs.py")


if __name__ == "__main__":
    main()
