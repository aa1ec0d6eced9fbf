"""Case, family, Service, and its ports that get rules: name, cluster IP, port, protocol, health check port, external IPs,
addresses of load balancers, ranges of sources.
"""
from ..tests import dictionaries, get, Test, to_json

SOURCE = "pkg/proxy/servicechangetracker_test.go"


def rows():
    test = Test(SOURCE, beside=None)
    for row in dictionaries(test.table("TestServiceToServiceMap", "testCases")):
        if row["service"] is None:
            continue
        ports = []
        for key, info in (row["expected"] or {}).items():
            port = dict(key)
            addresses = [[to_json(address) for address in get(info, name) or []] for name in ("externalIPs", "loadBalancerVIPs", "loadBalancerSourceRanges")]
            ports.append([port.get("Port", ""), get(info, "clusterIP"), get(info, "port"), get(info, "protocol"), get(info, "healthCheckNodePort"), *addresses])
        yield ["TestServiceToServiceMap", row["desc"], row["ipFamily"], to_json(row["service"]), ports]
