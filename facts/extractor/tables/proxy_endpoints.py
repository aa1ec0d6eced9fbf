"""Endpoints by Service ports are as `namespace/name:port:protocol` and a list of address, whether local, ready, serving and
terminating. TestEndpointsMapFromESC, TestEndpointInfoByServicePort: case, node, slices, Service, its endpoints.
TestEsDataChanged: case, slice, slice, whether rules can differ (the slices have got a type of addresses).
TestUpdateEndpointsMap: case, node, slices, changes (put or delete, slice), endpoints before, endpoints after, the Services that
changed, how many local ready endpoints each has. TestEndpointSliceUpdate: case, family, node, slices, change, Service,
whether it changed, its endpoints, null where upstream compares none.
"""
from ..tests import dictionaries, get, Test, to_json

SOURCE = "pkg/proxy/endpointslicecache_test.go, endpointschangetracker_test.go"
DIRECTORY = "pkg/proxy"


def slice_of(found):
    made = to_json(found)
    made.setdefault("addressType", "IPv4")
    return made


def name_of(found):
    return f'{get(found, "Namespace")}/{get(found, "Name")}'


def name_of_key(key):
    fields = dict(key)
    return f'{fields.get("Namespace", "")}/{fields.get("Name", "")}'


def endpoints(found):
    made = {}
    for key, infos in (found or {}).items():
        port = dict(key)
        infos = infos.values() if isinstance(infos, dict) else infos
        told = [[get(info, "endpoint"), *(get(info, name) for name in ("isLocal", "ready", "serving", "terminating"))] for info in infos]
        made[f'{name_of_key(port["NamespacedName"])}:{port.get("Port", "")}:{port["Protocol"]}'] = sorted(told)
    return made


def of_cache():
    test = Test(f"{DIRECTORY}/endpointslicecache_test.go", {"NewEndpointSliceCache": lambda *_: None}, None)
    for function in ("TestEndpointsMapFromESC", "TestEndpointInfoByServicePort"):
        for name, row in dictionaries(test.table(function, "testCases")).items():
            yield [function, name, row["hostname"], [slice_of(found) for found in row["endpointSlices"]], name_of(row["namespacedName"]), endpoints(row["expectedMap"])]
    for name, row in dictionaries(test.table("TestEsDataChanged", "testCases")).items():
        yield ["TestEsDataChanged", name, slice_of(row["initialSlice"]), slice_of(row["updatedSlice"]), row["expectChanged"]]


def of_tracker():
    test = Test(f"{DIRECTORY}/endpointschangetracker_test.go", {"NewEndpointsChangeTracker": lambda family, node, *_: [family, node]}, None)
    node = test.package.values.get("testHostname")
    for row in dictionaries(test.table("TestUpdateEndpointsMap", "testCases")):
        node = test.evaluator.name("testHostname", test.empty)
        before, after = row["previousEndpointSlices"] or [], row["currentEndpointSlices"] or []
        changes = [["put", slice_of(new)] if new else ["delete", slice_of(old)] for old, new in zip(before, after) if old or new]
        local = {name_of_key(key): number for key, number in row["expectedLocalEndpoints"].items()}
        yield [
            "TestUpdateEndpointsMap", row["name"], node, [slice_of(old) for old in before if old], changes, endpoints(row["previousEndpointsMap"]),
            endpoints(row["expectedResult"]), sorted(map(name_of_key, row["expectedChangedEndpoints"])), local,
        ]
    for name, row in dictionaries(test.table("TestEndpointSliceUpdate", "testCases")).items():
        change = ["delete" if row["paramRemoveSlice"] else "put", slice_of(row["paramEndpointSlice"])]
        expected = row["expectedCurrentChange"]
        yield [
            "TestEndpointSliceUpdate", name, *row["endpointsChangeTracker"], [slice_of(found) for found in row["startingSlices"]], change,
            name_of(row["namespacedName"]), row["expectedReturnVal"], None if expected is None else endpoints(expected),
        ]


def rows():
    yield from of_cache()
    yield from of_tracker()
