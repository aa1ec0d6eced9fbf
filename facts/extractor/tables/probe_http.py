"""TestHTTPProbeChecker: what the server does (`answer`: status and text; it answers with the `headers` of the request, how many they
are (`count`), their `names` or its `host`; `sleep`; `redirect` to a page: status, whether that page fails; `lost`: a redirect to a
page that has the same status and a text, and leads nowhere), headers of the probe, result, and what the text has and has not.
TestHTTPProbeChecker_NonLocalRedirects: case, where a page leads, result; `OTHER` is the same host at another port.
TestHTTPProbeChecker_HostHeaderPreservedAfterRedirect: case, header, result of a page that leads to one for www.success.com only.
"""
from ..evaluate import Lambda
from ..tests import dictionaries, Scope, Struct, Test, within

SOURCE = "pkg/probe/http/http_test.go"
STATUSES = {"MovedPermanently": 301, "Found": 302, "TemporaryRedirect": 307, "PermanentRedirect": 308, "InternalServerError": 500}


def server(handler, kinds):
    for name, outer in kinds.items():
        if handler is outer:
            return {"headerEchoHandler": ["headers"], "headerCounterHandler": ["count"], "headerKeysNamesHandler": ["names"]}[name]
        inner = next(within(outer.body, "lambda"), None)
        if inner and handler.body is inner[2]:
            of = handler.scope.find
            return {
                "handleReq": lambda: ["answer", of("s"), of("body")], "redirectHandler": lambda: ["redirect", of("s"), of("bad")],
                "redirectHandlerWithBody": lambda: ["lost", of("s"), of("body")],
            }[name]()
    return ["sleep"] if "Sleep" in repr(handler.body) else ["host"]


def assigned(test, function, name, **known):
    """What a function gives a name, with what its other names stand for."""
    statement = next(s for s in test.function(function)[4] if s[0] == "assign" and s[1] == [("name", name)])
    scope = Scope()
    scope.names.update(known)
    return test.evaluator.value(statement[3][0], scope)


def rows():
    test = Test(SOURCE, {f"net/http.Status{name}": code for name, code in STATUSES.items()}, ["http.go"])
    function = "TestHTTPProbeChecker"
    scope = test.scope(function, "testCases")
    kinds = {name: value for name, value in scope.names.items() if isinstance(value, Lambda)}
    for row in dictionaries(scope.find("testCases")):
        yield [function, server(row["handler"], kinds), row["reqHeaders"] or {}, row["health"], row["accBody"], row["notBody"]]
    function = "TestHTTPProbeChecker_NonLocalRedirects"
    other = Struct(type("", (), {"name": "Server", "package": None, "tree": ("struct", [])}), {"URL": "OTHER"})
    for case, row in dictionaries(assigned(test, function, "testCases", newportServer=other)).items():
        yield [function, case, row["redirect"], row["expectLocalResult"]]
    function = "TestHTTPProbeChecker_HostHeaderPreservedAfterRedirect"
    hosts = {name: assigned(test, function, name) for name in ("successHostHeader", "failHostHeader")}
    for case, row in dictionaries(assigned(test, function, "testCases", **hosts)).items():
        yield [function, case, row["hostHeader"], row["expectedResult"]]
