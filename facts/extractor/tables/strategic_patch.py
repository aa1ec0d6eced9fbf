"""Of the type MergeItem: case, object, patch, result; or part of the error. A case has a patch of two objects and one of three.
"""
import os
import subprocess
import sys

from ..tests import dictionaries, Test

try:
    import yaml
except ImportError:
    tools = os.path.join(os.path.dirname(__file__), "../../../scripts/python.sh")
    sys.path.append(subprocess.check_output([tools], text=True).strip())
    import yaml

SOURCE = "staging/src/k8s.io/apimachinery/pkg/util/strategicpatch/patch_test.go"


MERGED = {"mergingList", "mergeItemPtr", "retainKeysMergingList"}


def ordered(value):
    """Lists that are merged in the order of their keys, as upstream sorts objects before it compares them."""
    if not isinstance(value, dict):
        return value
    made = {}
    for key, held in value.items():
        if key == "$retainKeys" or key.startswith("$deleteFromPrimitiveList/"):
            held = sorted(held, key=str)
        elif key == "mergingIntList":
            held = sorted(dict.fromkeys(held), key=str) if isinstance(held, list) else held
        elif key in MERGED and isinstance(held, list):
            held = sorted(map(ordered, held), key=lambda item: str(item.get("name")))
        elif not key.startswith("$"):
            held = ordered(held)
        made[key] = held
    return made


def cases(function, of, sort=lambda value: value):
    for case in of:
        case = {name[0].lower() + name[1:]: value for name, value in case.items()}
        name, error = case["description"], case.get("expectedError")
        found = lambda key: sort(case.get(key) if case.get(key) is not None else {})
        if case.get("twoWay") is not None or function == "TestCustomStrategicMergePatch":
            result = found("twoWayResult" if case.get("twoWayResult") is not None else "modified")
            yield [function, name, found("original"), found("twoWay"), *([None, error] if error else [result])]
        if case.get("threeWay") is not None and case.get("result") and not error:
            yield [function, f"{name}, three objects", found("current"), found("threeWay"), found("result")]


def raw(test, variable):
    for row in dictionaries(test.evaluator.name(variable, test.empty)):
        data = dictionaries([row["StrategicMergePatchRawTestCaseData"]])[0]
        yield {"description": row["Description"]} | {
            key: value if key == "ExpectedError" else yaml.safe_load(value) if value else None for key, value in data.items()
        }


def rows():
    test = Test(SOURCE)
    test.function("TestStrategicMergePatch")
    written = lambda variable: yaml.safe_load(test.evaluator.name(variable, test.empty))["testCases"]
    yield from cases("TestCustomStrategicMergePatch", written("customStrategicMergePatchTestCaseData"), ordered)
    yield from cases("TestCustomStrategicMergePatch", raw(test, "customStrategicMergePatchRawTestCases"))
    yield from cases("TestStrategicMergePatch", written("createStrategicMergePatchTestCaseData"), ordered)
    yield from cases("TestStrategicMergePatch", raw(test, "strategicMergePatchRawTestCases"))
    yield from cases("TestReplaceWithRawExtension", raw(test, "replaceRawExtensionPatchTestCases"))
