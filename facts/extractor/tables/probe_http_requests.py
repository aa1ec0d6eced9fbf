"""TestFormatURL: scheme, host, port, path, URL. The others: headers as a probe has them (name and value), and as they are sent.
"""
from ..tests import dictionaries, get, Test

SOURCE = "pkg/probe/http/request_test.go"


def rows():
    test = Test(SOURCE, beside=["request.go"])
    for row in dictionaries(test.table("TestFormatURL", "testCases")):
        yield ["TestFormatURL", *(row[cell] for cell in ("scheme", "host", "port", "path", "result"))]
    for function, table, given, sent in (("Test_v1HeaderToHTTPHeader", "tests", "headerList", "want"), ("TestHeaderConversion", "testCases", "headers", "expected")):
        for row in dictionaries(test.table(function, table)):
            yield [function, [[get(header, "Name"), get(header, "Value")] for header in row[given]], row[sent]]
