#!/usr/bin/env python3
"""Bring the generated parts of README.md up to date, or check that they are.

A generated part lies between two comments:

    <!-- begin file examples/NAME.cpp -->      the file, as a code block
    <!-- begin output info --markdown -->      what `fp8attn info --markdown` prints
    <!-- end -->

Usage: tools/update_readme.py [--check] [--build DIR]     (DIR: a build with every option at its default, and CUDA)
"""

import argparse
import difflib
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PART = re.compile(r"(?P<begin><!-- begin (?P<kind>file|output) (?P<argument>[^\n]+?) -->\n).*?(?P<end><!-- end -->)", re.S)
LANGUAGES = {".cpp": "cpp", ".txt": "cmake"}


def content(match, build):
    if match["kind"] == "file":
        path = ROOT / match["argument"]
        return f"```{LANGUAGES.get(path.suffix, '')}\n{path.read_text(encoding='utf-8').strip()}\n```\n"
    command = [str(build / "fp8attn"), *match["argument"].split()]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip() + "\n"


def main():
    parser = argparse.ArgumentParser(description="Update the generated parts of README.md.")
    parser.add_argument("--check", action="store_true", help="change nothing; fail where README.md is out of date")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build", help="build directory (default: build)")
    arguments = parser.parse_args()

    readme = ROOT / "README.md"
    old = readme.read_text(encoding="utf-8")
    new, count = PART.subn(lambda match: match["begin"] + content(match, arguments.build) + match["end"], old)
    if count != old.count("<!-- begin ") or count == 0:
        sys.exit(f"README.md: {old.count('<!-- begin ')} parts begin, {count} are complete")
    if new == old:
        print(f"README.md: {count} generated parts, up to date")
        return
    if arguments.check:
        sys.stdout.writelines(difflib.unified_diff(old.splitlines(True), new.splitlines(True), "README.md", "generated"))
        sys.exit("README.md is out of date: run tools/update_readme.py")
    readme.write_text(new, encoding="utf-8")
    print("README.md: updated")


if __name__ == "__main__":
    main()
