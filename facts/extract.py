#!/usr/bin/env python3
"""Writes the tables next to this file from upstream's tests.

usage: KUBERNETES=DIRECTORY facts/extract.py [TABLE…]

DIRECTORY has Kubernetes' sources (pkg, staging, vendor) of the tag that `TAG` names. Without names all tables are written; of a
new release, set TAG, write them and read the difference. Nothing but Python is needed.
"""
import importlib
import json
import os
import pkgutil
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
sys.dont_write_bytecode = True
TAG = "v1.36.2"


def text(cell):
    """A cell: texts are JSON where they would not be one cell or could be mistaken for it."""
    if isinstance(cell, str) and cell.isprintable() and not cell.startswith(('"', " ")) and not cell.endswith(" ") and cell:
        return cell
    if isinstance(cell, bool) or not isinstance(cell, (int, float)):
        return json.dumps(cell, ensure_ascii=True, sort_keys=True, separators=(",", ":"))
    return repr(cell)


def write(name, module):
    rows = [[text(cell) for cell in row] for row in module.rows()]
    functions = list(dict.fromkeys(row[0] for row in rows if row[0].startswith("Test")))
    with open(f"{HERE}/{name}.tsv", "w") as out:
        out.write(f"# Kubernetes {TAG} {module.SOURCE}: {', '.join(functions)}\n")
        for line in module.__doc__.strip().splitlines():
            out.write(f"# {line.strip()}\n")
        out.write("".join("\t".join(row) + "\n" for row in rows))
    print(f"{name}: {len(rows)} rows of {len(functions)} functions")


def main():
    from extractor import tables
    from extractor.model import Package
    from extractor.natives import METHODS
    names = sys.argv[1:] or sorted(found.name for found in pkgutil.iter_modules(tables.__path__))
    common = dict(METHODS)
    for name in names:
        # What a table adds is its own: another one's package has other files, and its methods of the same name do something else.
        Package.loaded.clear()
        METHODS.clear()
        METHODS.update(common)
        write(name, importlib.import_module(f"extractor.tables.{name}"))


if __name__ == "__main__":
    if "KUBERNETES" not in os.environ:
        sys.exit(__doc__.strip())
    main()
