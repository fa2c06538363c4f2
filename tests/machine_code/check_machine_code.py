#!/usr/bin/env python3
"""Checks the machine code (SASS) of the prefill kernels: the 8-bit ones multiply with the 8-bit tensor-core instruction
(QGMMA), the 16-bit ones with the 16-bit one (HGMMA), and none uses local memory (LDL, STL: a register spill).

Exit status 0: as it should be; 1: not; 77: skipped, because cuobjdump or nvdisasm is not to be had.
"""

import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig

SKIPPED = 77
TENSOR_INSTRUCTION = {"ElementE4M3": "QGMMA", "ElementBF16": "HGMMA", "ElementFP16": "HGMMA"}
FUNCTION = re.compile(r"^\s*Function : (\S+)")
INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9]*)")


def opcodes_by_function(sass):
    """{mangled name: {opcode: count}} of the output of cuobjdump -sass."""
    functions, current = {}, None
    for line in sass.splitlines():
        if match := FUNCTION.match(line):
            current = functions.setdefault(match[1], {})
        elif current is not None and (match := INSTRUCTION.match(line)):
            current[match[1]] = current.get(match[1], 0) + 1
    return functions


def problems(functions, elements):
    """What is wrong, one line each; elements are the element types that the build must have kernels of."""
    found = []
    kernels = {name: opcodes for name, opcodes in functions.items() if "prefill" in name}
    for element in elements:
        if not any(element in name for name in kernels):
            found.append(f"no prefill kernel of {element} in the library")
    for name, opcodes in kernels.items():
        needed = {TENSOR_INSTRUCTION[element] for element in TENSOR_INSTRUCTION if element in name}
        if len(needed) != 1:
            found.append(f"{name}: its element type is not one of {', '.join(TENSOR_INSTRUCTION)}")
        for instruction in needed:
            if instruction not in opcodes:
                found.append(f"{name}: no {instruction}")
        for spill in ("LDL", "STL"):
            if spill in opcodes:
                found.append(f"{name}: {opcodes[spill]} {spill} (local memory)")
    return found


def find_tool(name, directories):
    """The tool on PATH, in one of the directories, or in a pip package (nvidia/*/bin under site-packages)."""
    packages = pathlib.Path(sysconfig.get_path("purelib"))
    places = [*directories, *packages.glob("nvidia/*/bin")]
    return shutil.which(name) or next((path for place in places if (path := shutil.which(name, path=place))), None)


def main():
    parser = argparse.ArgumentParser(description="Check the machine code of the prefill kernels.")
    parser.add_argument("library", nargs="?", help="archive, shared library or object with the kernels; without it, "
                        "only say whether the tools are there")
    parser.add_argument("--element", action="append", default=[], choices=TENSOR_INSTRUCTION,
                        help="an element type that must be there; repeat for more")
    parser.add_argument("--tools", action="append", default=[], help="a further folder with cuobjdump and nvdisasm")
    arguments = parser.parse_args()

    tools = {name: find_tool(name, arguments.tools) for name in ("cuobjdump", "nvdisasm")}
    if missing := [name for name, path in tools.items() if path is None]:
        print(f"skipped: {' and '.join(missing)} not found on PATH, in the CUDA toolkit or in Python's packages "
              "(pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm)")
        return SKIPPED
    if arguments.library is None:
        return 0
    dump = subprocess.run([tools["cuobjdump"], "-sass", arguments.library], capture_output=True, text=True,
                          env={"PATH": str(pathlib.Path(tools["nvdisasm"]).parent)}, check=False)
    if dump.returncode != 0:
        print(f"{tools['cuobjdump']} failed: {dump.stderr.strip()}")
        return 1
    functions = opcodes_by_function(dump.stdout)
    found = problems(functions, arguments.element)
    for problem in found:
        print(problem)
    count = sum("prefill" in name for name in functions)
    print(f"{count} prefill kernels, {len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
