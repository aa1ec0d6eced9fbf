"""Case, port, container, number or `bad`.
"""
from ..tests import dictionaries, get, Test, to_json

SOURCE = "pkg/probe/util_test.go"


def rows():
    test = Test(SOURCE, beside=["util.go"])
    for function in ("TestFindPortByName", "TestResolveContainerPort"):
        for row in dictionaries(test.table(function, "tests")):
            args = dictionaries([row["args"]])[0]
            param = args.get("param")
            # The third type is none of the API.
            if param and get(param, "Type") > 1:
                continue
            port = to_json(param) if param else args["portName"]
            yield [function, row["name"], port, to_json(args["container"]), "bad" if row["wantErr"] else row["want"]]
