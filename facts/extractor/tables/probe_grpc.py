"""Case, what listens at the port (`nobody`, `http`, or a server of gRPC that is `serving`, `not serving` or `late` with its answer),
time limit in seconds, result, text (null: any).
"""
from ..natives import SECOND
from ..tests import Scope, Test, within

SOURCE = "pkg/probe/grpc/grpc_test.go"
SERVERS = {"successServerMock": "serving", "errorNotServeServerMock": "not serving", "errorTimeoutServerMock": "late"}


def rows():
    test = Test(SOURCE, beside=["grpc.go"])
    value = lambda tree: test.evaluator.value(tree, Scope())
    for call in within(test.function("TestGrpcProber_Probe")[4], "call"):
        if call[1] != ("member", ("name", "t"), "Run"):
            continue
        body = call[2][1]
        named = [SERVERS[name[1]] for name in within(body, "name") if name[1] in SERVERS]
        http = any(member[2] == "NewServer" and member[1] == ("name", "httptest") for member in within(body, "member"))
        asked = next(one for one in within(body, "call") if one[1] == ("member", ("name", "s"), "Probe"))
        equals = {one[2][2][1]: value(one[2][1]) for one in within(body, "call") if one[1] == ("member", ("name", "assert"), "Equal")}
        limit = value(asked[2][3]) / SECOND
        yield ["TestGrpcProber_Probe", call[2][0][1], named[0] if named else "http" if http else "nobody", limit, equals["p"], equals.get("o")]
